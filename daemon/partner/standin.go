package partner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/copies"
)

// Config is what a Partner needs.
type Config struct {
	Node    node.Node
	Records Records
	Lease   *copies.Lease
	Dir     string // of the copies of other homes
	// Patience is how long changes wait for a partner that does not answer; longer than a lost one is not declared so.
	Patience time.Duration
	Room     func() bool // whether the disk has room for more records
	// Peer is the connection to another node.
	Peer func(metadata.NodeID) rpc.Caller
	// Here is what this node answers.
	Here func() node.Handlers
	// Open opens a copy in dir as the home n.Self().
	Open func(n node.Node, dir string) (*home.Server, error)
}

// Partner is both sides of this node, and the homes that it stands in for.
type Partner struct {
	*Sender
	cfg  Config
	recv *Receiver

	mu     sync.Mutex
	opened map[metadata.NodeID]standIn // guarded by mu
	more   chan struct{}               // guarded by mu; closed when another one is opened
}

// standIn is a home of another node, opened here.
type standIn struct {
	server *home.Server
	table  node.Handlers
}

// Open opens what an earlier daemon has left. Start begins the work.
func Open(cfg Config) (*Partner, error) {
	p := &Partner{cfg: cfg, opened: make(map[metadata.NodeID]standIn), more: make(chan struct{})}
	var err error
	if p.Sender, err = openSender(&cfg); err != nil {
		return nil, err
	}
	if p.recv, err = openReceiver(&cfg); err != nil {
		return nil, err
	}
	return p, nil
}

// Start begins the work in the background.
func (p *Partner) Start() {
	p.node.Spawn(p.Sender.run)
	p.node.Spawn(p.Sender.record)
	p.node.Spawn(func(ctx context.Context) { node.Follow(ctx, p.node, firstPause, 4*longestWait, p.openAll) })
}

// Close closes the copies. All that Start began must have ended.
func (p *Partner) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := []error{p.recv.close()}
	for _, s := range p.opened {
		errs = append(errs, s.server.Close())
	}
	return errors.Join(errs...)
}

// Handlers is what the node answers.
func (p *Partner) Handlers() node.Handlers {
	return node.Handlers{wire.OpMirror: node.HandleFrom(p.recv.onMirror), wire.OpStandIn: p.onStandIn, wire.OpStandInPeer: p.onStandIn, wire.OpStandInOnce: p.onStandIn}
}

// openAll opens the homes that this node stands in for by the view v, and reports whether all are open.
func (p *Partner) openAll(v cluster.View) bool {
	all := true
	for _, n := range v.Map.Nodes {
		if !n.Partner.StandsIn || n.Partner.Node != p.node.Self() {
			continue
		}
		if err := p.open(n); err != nil {
			all = false
			p.log.WithError(err).WithField("home", n.Host).Error("cannot stand in for a lost node: its files cannot be reached; trying again")
		}
	}
	return all
}

func (p *Partner) open(n cluster.Node) error {
	p.mu.Lock()
	_, is := p.opened[n.ID]
	p.mu.Unlock()
	if is {
		return nil
	}
	dir, err := p.recv.seal(n.ID)
	if err != nil {
		return err
	}
	s, err := p.cfg.Open(&place{p.node, p, n.ID}, dir)
	if err != nil {
		return err
	}
	s.Start()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened[n.ID] = standIn{s, s.Handlers()}
	close(p.more)
	p.more = make(chan struct{})
	p.log.WithField("home", n.Host).Warn("this node stands in for a lost node: it serves the names of its files")
	return nil
}

// openTime is how long a call waits for a home that this node is about to open.
const openTime = 10 * time.Second

// handler returns the handler of op for to: this node, or a home that it stands in for.
func (p *Partner) handler(ctx context.Context, to metadata.NodeID, op wire.Op) (rpc.Handler, error) {
	table := p.cfg.Here()
	if to != p.node.Self() || op.ForHome() && p.Replaced() {
		s, err := p.at(ctx, to)
		if err != nil {
			return nil, err
		}
		table = s.table
	}
	if h := table[op]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("%v: %w", op, syscall.ENOSYS)
}

// at returns the home of a node that this node stands in for, once it is open.
func (p *Partner) at(ctx context.Context, to metadata.NodeID) (standIn, error) {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	for {
		p.mu.Lock()
		s, ok := p.opened[to]
		more := p.more
		p.mu.Unlock()
		if ok {
			return s, nil
		}
		n, _ := p.node.View().Map.Node(to)
		if !n.Partner.StandsIn || n.Partner.Node != p.node.Self() {
			return s, fmt.Errorf("this node does not stand in for node %d: %w", to, syscall.EAGAIN)
		}
		select {
		case <-ctx.Done():
			return s, fmt.Errorf("the names of node %d cannot be opened: %w", to, syscall.EHOSTDOWN)
		case <-more:
		}
	}
}

// onStandIn answers a request from or to a home that another node stands in for.
func (p *Partner) onStandIn(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	var q wire.StandInReq
	if err := wire.Parse(r.Body, &q); err != nil {
		return err
	}
	if err := p.catchUp(ctx, r.Epoch); err != nil {
		return err
	}
	if q.From != r.Peer {
		if n, _ := p.node.View().Map.Node(q.From); !n.Partner.StandsIn || n.Partner.Node != r.Peer {
			return fmt.Errorf("node %d does not stand in for node %d: %w", r.Peer, q.From, syscall.EPERM)
		}
	}
	if !q.Op.ForHome() && !toNode(q.Op) || r.Op != q.Op.StandIn() {
		return fmt.Errorf("%v in the place of node %d: %w", q.Op, q.From, syscall.EPERM)
	}
	h, err := p.handler(ctx, q.To, q.Op)
	if err != nil {
		return err
	}
	return h(ctx, &rpc.Request{Op: q.Op, Peer: q.From, Epoch: r.Epoch, Body: q.Body, StandIn: q.From != r.Peer}, resp)
}

// catchUp waits for a view that the sender of a request has.
func (p *Partner) catchUp(ctx context.Context, e metadata.Epoch) error {
	if p.node.View().Map.Epoch >= e {
		return nil
	}
	p.node.Nudge()
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	return p.node.Until(ctx, func(v cluster.View) bool { return v.Map.Epoch >= e })
}

// toNode reports whether a home asks other nodes, as nodes, for op.
func toNode(op wire.Op) bool {
	switch op {
	case wire.OpRecall, wire.OpRemoveObjects, wire.OpWake, wire.OpRevoke, wire.OpObjects:
		return true
	}
	return false
}

// place is this node in the place of another one, as a home.
type place struct {
	node.Node
	p    *Partner
	self metadata.NodeID
}

// Self is node.Caller.
func (n *place) Self() metadata.NodeID { return n.self }

// To is node.Caller.
func (n *place) To(id metadata.NodeID) rpc.Caller { return &caller{n.p, n.self, id} }

// Call is node.Caller.
func (n *place) Call(ctx context.Context, id metadata.NodeID, op wire.Op, q, reply any) error {
	return node.CallJSON(ctx, n.To(id), op, q, reply)
}
