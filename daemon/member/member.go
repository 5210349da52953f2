package member

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// Config is what a Member needs.
type Config struct {
	Ctx     context.Context // ends when the daemon stops
	Node    node.Node       // that embeds the Member
	Job     *job.File
	Every   time.Duration    // between two reports
	Down    time.Duration    // silence after which the leader declares a node down
	Started time.Time        // when this daemon started
	Group   raftstore.Config // its Dir, Dial, Timing and Log
	// Fill adds to a report what the rest of the daemon has to say.
	Fill func(*leader.Report)
	// Heard is called with each reply of a member that knows the leader, before the view changes by it.
	Heard func(Reply)
	// Leased is called when the leader has recorded a report, with the time at which it was sent (copies.Lease).
	Leased func(sent time.Time)
	// Disconnect ends the calls to a node that was declared down.
	Disconnect func(metadata.NodeID)
	// StageIn enters a dataset of the job file in the registry.
	StageIn func(context.Context, job.Dataset) (run func(context.Context) error, err error)
}

// Member is this node in the control plane.
type Member struct {
	cfg     Config
	lead    *leader.Leader
	history *cluster.History
	kick    chan struct{} // report at once; one is enough

	mu      sync.Mutex
	view    cluster.View     // guarded by mu
	changed chan struct{}    // guarded by mu; closed when view changes
	leading leading          // guarded by mu
	group   *raftstore.Group // guarded by mu; nil where this node is no member
}

// leading is the leader of the control group, and since when, as far as is known here.
type leading struct {
	node  metadata.NodeID
	since time.Time
}

// New makes a Member that knows the hosts of the job and nothing of their state.
func New(cfg Config) *Member {
	m := &Member{cfg: cfg, kick: make(chan struct{}, 1), changed: make(chan struct{}), view: first(cfg.Job)}
	m.history = cluster.NewHistory(m.view, firstAddrs(cfg.Job.Addrs))
	m.leading.node = leader.Members(len(cfg.Job.Hosts))[0]
	m.lead = leader.New(leader.Config{
		Node: cfg.Node, Job: cfg.Job, Every: cfg.Every, Down: cfg.Down, Started: cfg.Started,
		SetView: m.setView, Report: m.report, StageIn: cfg.StageIn,
	})
	return m
}

// first is the view before anything is agreed on.
func first(j *job.File) cluster.View { return cluster.View{Map: cluster.NewMap(j.Seed, j.Hosts)} }

// Open joins the Raft group, on the nodes that form it.
func (m *Member) Open() error {
	members := leader.Members(len(m.cfg.Job.Hosts))
	if int(m.cfg.Job.Self) >= len(members) {
		return nil
	}
	c := m.cfg.Group
	c.Self, c.Members, c.Initial = m.cfg.Job.Self, members, first(m.cfg.Job)
	g, err := raftstore.Open(c)
	if err != nil {
		return fmt.Errorf("control plane: %w", err)
	}
	m.mu.Lock()
	m.group = g
	m.mu.Unlock()
	m.cfg.Node.Spawn(func(ctx context.Context) { m.followGroup(ctx, g) })
	m.cfg.Node.Spawn(func(ctx context.Context) { m.lead.Run(ctx, g) })
	m.cfg.Node.Spawn(func(ctx context.Context) { m.lead.Broadcast(ctx, g) })
	return nil
}

// Close leaves the Raft group.
func (m *Member) Close() error {
	if g := m.raftGroup(); g != nil {
		return g.Close()
	}
	return nil
}

// Stream hands a connection of another member to the Raft group. One that comes before the group
// is open is refused; the caller tries again.
func (m *Member) Stream(conn net.Conn, _ metadata.NodeID) {
	g := m.raftGroup()
	if g == nil {
		_ = conn.Close()
		return
	}
	g.Accept(conn)
}

// Handlers is what a node answers to the others.
func (m *Member) Handlers() node.Handlers {
	return node.Handlers{
		wire.OpReport:  node.HandleJSON(m.onReport),
		wire.OpPropose: node.HandleJSON(m.onPropose),
	}
}

// Lead has the duties of the leader, and knows the reports while this node leads.
func (m *Member) Lead() *leader.Leader { return m.lead }

// Leader is the leader of the control group, as far as this node knows.
func (m *Member) Leader() metadata.NodeID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leading.node
}

// Leads reports whether this node leads the control group.
func (m *Member) Leads() bool {
	g := m.raftGroup()
	return g != nil && g.IsLeader()
}

// Nudge makes the next report go out at once.
func (m *Member) Nudge() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

func (m *Member) setLeader(id metadata.NodeID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leading.node != id {
		m.leading = leading{id, time.Now()}
	}
}

func (m *Member) raftGroup() *raftstore.Group {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.group
}

// followGroup keeps the view of a member of the group.
func (m *Member) followGroup(ctx context.Context, g *raftstore.Group) {
	for {
		changed := g.Changed()
		m.setView(g.View())
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
