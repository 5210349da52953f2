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
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// Config configures a Partner.
type Config struct {
	Node    node.Node
	Run     metadata.Run // of this node's daemon; numbers its streams
	Records Records
	Lease   *copies.Lease
	Dir     string // holds the copies of other homes
	// Patience is how long changes wait for a silent partner; a lost partner is declared lost before.
	Patience time.Duration
	Room     func() bool // whether the disk has room for more records
	// Peer is the connection to another node.
	Peer func(metadata.NodeID) rpc.Caller
	// Here returns the handlers of this node.
	Here func() node.Handlers
	// Open opens the copy in dir as the home n.Self(), which asks s whether it may answer.
	Open func(n node.Node, dir string, s *Sender) (*home.Server, error)
}

// Partner combines the sender and receiver of this node with the homes that it stands in for.
type Partner struct {
	*Sender // for this node's home
	cfg     Config
	recv    *Receiver

	mu     sync.Mutex
	opened map[metadata.NodeID]standIn // guarded by mu
	more   chan struct{}               // guarded by mu; closed when another home is opened
	over   bool                        // guarded by mu; the job has ended here
}

// standIn is a home of another node that is open here.
type standIn struct {
	server *home.Server
	table  node.Handlers
	sender *Sender
	place  *place
}

// Open opens the copies that an earlier daemon has left. Start begins the work.
func Open(cfg Config) (*Partner, error) {
	p := &Partner{cfg: cfg, opened: make(map[metadata.NodeID]standIn), more: make(chan struct{}), Sender: newSender(&cfg, cfg.Node.Self(), 0)}
	err := p.Sender.open(cfg.Records)
	if err != nil {
		return nil, err
	}
	if p.recv, err = openReceiver(&cfg); err != nil {
		return nil, err
	}
	return p, nil
}

// Start begins the background work.
func (p *Partner) Start() {
	p.node.Spawn(p.Sender.run)
	p.node.Spawn(p.Sender.record)
	p.node.Spawn(func(ctx context.Context) {
		node.Follow(ctx, p.node, firstPause, 4*longestWait, func(v cluster.View) bool { return p.openAll(ctx, v) })
	})
}

// Leave lets changes continue without partners, because the job has ended on this node and the partners may be down.
func (p *Partner) Leave() {
	p.Sender.Leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	for _, s := range p.opened {
		s.sender.Leave()
	}
}

// Close closes the copies. All goroutines that Start began must have ended.
func (p *Partner) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := []error{p.recv.close()}
	for _, s := range p.opened {
		errs = append(errs, s.server.Close())
	}
	return errors.Join(errs...)
}

// Handlers returns the handlers of the messages between partners.
func (p *Partner) Handlers() node.Handlers {
	return node.Handlers{wire.OpMirror: node.HandleFrom(p.recv.onMirror), wire.OpStandIn: p.onStandIn, wire.OpStandInPeer: p.onStandIn, wire.OpStandInOnce: p.onStandIn}
}

// openAll opens the homes that this node stands in for in the view v, and closes those that another node has now. It
// reports whether nothing is left to do.
func (p *Partner) openAll(ctx context.Context, v cluster.View) bool {
	all := true
	for _, n := range v.Map.Nodes {
		seat := n.Seat()
		if seat.Since == 0 {
			continue
		}
		log := p.Sender.log.WithField("host", n.Host).WithField("home", n.ID)
		if err := p.giveUp(n.ID, seat.Since); err != nil {
			all = false
			log.WithError(err).Error("old names of a node cannot be removed: trying again")
			continue
		}
		if seat.Node != p.node.Self() {
			continue
		}
		if err := p.open(ctx, n); err != nil {
			all = false
			log.WithError(err).Error("cannot stand in for a lost node: its files are unavailable; retrying")
		}
	}
	return all
}

// giveUp closes a home that this node stood in for before the seat moved to another node, and removes its records,
// which are outdated.
func (p *Partner) giveUp(id metadata.NodeID, seat metadata.Epoch) error {
	p.mu.Lock()
	s, is := p.opened[id]
	if is = is && s.sender.seat < seat; is {
		delete(p.opened, id)
	}
	p.mu.Unlock()
	if is {
		s.sender.replace()
		s.place.stop()
		if err := s.server.Close(); err != nil {
			return err
		}
		p.Sender.log.WithField("home", id).Warn("another node took over the names of a lost node from this one")
	}
	return p.recv.giveUp(id, seat)
}

func (p *Partner) open(ctx context.Context, n cluster.Node) error {
	p.mu.Lock()
	_, is := p.opened[n.ID]
	p.mu.Unlock()
	if is {
		return nil
	}
	dir, err := p.recv.seal(n.ID, n.Partner.Since)
	if errors.Is(err, syscall.ENODATA) && n.Heir.Since > 0 {
		return errors.Join(err, p.handOver(ctx, n))
	}
	if err != nil {
		return err
	}
	s := standIn{sender: newSender(&p.cfg, n.ID, n.Partner.Since), place: newPlace(p, n.ID)}
	if s.server, err = p.cfg.Open(s.place, dir, s.sender); err != nil {
		return err
	}
	if err := s.sender.open(s.server); err != nil {
		return errors.Join(err, s.server.Close())
	}
	s.table = s.server.Handlers()
	s.server.Start()
	s.place.Spawn(s.sender.run)
	s.place.Spawn(s.sender.record)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		s.sender.Leave()
	}
	p.opened[n.ID] = s
	close(p.more)
	p.more = make(chan struct{})
	p.Sender.log.WithField("home", n.Host).Warn("this node stands in for a lost node: it serves the names of its files")
	return nil
}

// handOver moves the seat of a home, whose records are lost here, to the node with the second copy.
func (p *Partner) handOver(ctx context.Context, n cluster.Node) error {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	n.Heir.StandsIn = true
	_, err := p.node.Propose(ctx, raftstore.Command{Kind: raftstore.KindPartner, Home: n.ID, Seat: n.Partner.Since, Partner: n.Heir})
	return err
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

// at waits for and returns the open home of a node that this node stands in for.
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
			return s, fmt.Errorf("this node does not stand in for node %d: %w: %w", to, metadata.ErrMoved, syscall.EAGAIN)
		}
		select {
		case <-ctx.Done():
			return s, fmt.Errorf("the names of node %d cannot be opened: %w", to, syscall.EHOSTDOWN)
		case <-more:
		}
	}
}

// onStandIn answers a request to or from a home that another node stands in for.
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

// catchUp waits until this node's view is as new as that of the sender of a request.
func (p *Partner) catchUp(ctx context.Context, e metadata.Epoch) error {
	if p.node.View().Map.Epoch >= e {
		return nil
	}
	p.node.Nudge()
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	return p.node.Until(ctx, func(v cluster.View) bool { return v.Map.Epoch >= e })
}

// toNode reports whether op is a call of a home to other nodes as nodes, not as homes.
func toNode(op wire.Op) bool {
	switch op {
	case wire.OpRecall, wire.OpRemoveObjects, wire.OpWake, wire.OpRevoke, wire.OpObjects:
		return true
	}
	return false
}

// place is this node in the place of another one, as a home, until another node takes over.
type place struct {
	node.Node
	p      *Partner
	self   metadata.NodeID
	ctx    context.Context // ends with stop
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newPlace(p *Partner, self metadata.NodeID) *place {
	n := &place{Node: p.node, p: p, self: self}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// Spawn implements node.Process.
func (n *place) Spawn(f func(context.Context)) {
	n.wg.Add(1)
	n.Node.Spawn(func(ctx context.Context) {
		defer n.wg.Done()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(n.ctx, cancel)()
		f(ctx)
	})
}

// stop ends all goroutines of Spawn, and waits for them.
func (n *place) stop() {
	n.cancel()
	n.wg.Wait()
}

// Self implements node.Caller.
func (n *place) Self() metadata.NodeID { return n.self }

// To implements node.Caller.
func (n *place) To(id metadata.NodeID) rpc.Caller { return &caller{n.p, n.self, id} }

// Call implements node.Caller.
func (n *place) Call(ctx context.Context, id metadata.NodeID, op wire.Op, q, reply any) error {
	return node.CallJSON(ctx, n.To(id), op, q, reply)
}
