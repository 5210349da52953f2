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

// Config configures a Member.
type Config struct {
	Ctx     context.Context // ends when the daemon stops
	Node    node.Node       // the node that embeds the Member
	Job     *job.File
	Every   time.Duration    // between two reports
	Down    time.Duration    // silence after which the leader declares a node down
	Started time.Time        // when this daemon started
	Group   raftstore.Config // its Dir, Dial, Timing and Log
	// Fill adds the state of the rest of the daemon to a report.
	Fill func(*leader.Report)
	// Heard is called with each reply of a member that knows the leader, before the reply changes the view.
	Heard func(Reply)
	// Leased is called when the leader has recorded a report, with the send time of the report (copies.Lease).
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
	kick    chan struct{} // report at once; one token is enough

	mu      sync.Mutex
	view    cluster.View     // guarded by mu
	changed chan struct{}    // guarded by mu; closed when view changes
	leading leading          // guarded by mu
	group   *raftstore.Group // guarded by mu; nil if this node is not a member
}

// leading is the last known leader of the control group, and the time since when it leads.
type leading struct {
	node  metadata.NodeID
	since time.Time
}

// New returns a Member that knows the hosts of the job but not their state.
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

// first returns the view before any agreement.
func first(j *job.File) cluster.View { return cluster.View{Map: cluster.NewMap(j.Seed, j.Hosts)} }

// Open joins the Raft group, if this node is one of its members.
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

// Stream passes a connection of another member to the Raft group. Before the group is open it refuses the connection;
// the caller retries.
func (m *Member) Stream(conn net.Conn, _ metadata.NodeID) {
	g := m.raftGroup()
	if g == nil {
		_ = conn.Close()
		return
	}
	g.Accept(conn)
}

// Handlers returns the handlers for calls from other nodes.
func (m *Member) Handlers() node.Handlers {
	return node.Handlers{
		wire.OpReport:  node.HandleJSON(m.onReport),
		wire.OpPropose: node.HandleJSON(m.onPropose),
	}
}

// Lead returns the Leader, which collects the reports while this node leads.
func (m *Member) Lead() *leader.Leader { return m.lead }

// Leader returns the leader of the control group, as far as this node knows.
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

// Nudge sends the next report at once.
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

// followGroup updates the view of a member of the group.
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
