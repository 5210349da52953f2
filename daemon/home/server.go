package home

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/locks"
	"github.com/bivouacfs/bivouac/metadata/opens"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

// Config configures a Server.
type Config struct {
	Node node.Node
	Data Data
	// Dir holds the records. Root belongs to UID and GID.
	Dir      string
	UID, GID uint32
	// Run is the run of this node's client: it starts and ends with the daemon.
	Run metadata.Run
	// Home and Shards return the stubs of another home, and of another node's shards of wide directories.
	Home   func(metadata.NodeID) metadata.TxPeer
	Shards func(metadata.NodeID) metadata.Shards
	// SplitAt is the number of entries at which a directory is split over the nodes; 0 means 131072.
	SplitAt int
	// SweepDelay is the delay before a sweep; 0 means 5 s. Nodes with open orphans are asked every six times as long.
	SweepDelay time.Duration
	// StandIn: this is the home of another node, which was lost; this node's client is not its client.
	StandIn bool
	// Serves returns why the home must not answer now, because another node may stand in for it; nil means never.
	Serves func() error
	// Room reports whether the node with a copy of the records has room for more; nil means always.
	Room func() bool
	// InStep reports whether the records here include each change of an earlier daemon that the node with the copy has.
	// Until then a missing record does not prove that a change was not made. nil means always.
	InStep func() bool
	// Copies has all homes keep copies of their records on other nodes (metadata.Layout.Copies).
	Copies func(ctx context.Context) error
	Now    func() time.Time // nil means time.Now
}

func (c *Config) setDefaults() {
	if c.SplitAt == 0 {
		c.SplitAt = defaultSplitAt
	}
	if c.SweepDelay == 0 {
		c.SweepDelay = 5 * time.Second
	}
	if c.Serves == nil {
		c.Serves = func() error { return nil }
	}
	if c.InStep == nil {
		c.InStep = func() bool { return true }
	}
	if c.Copies == nil {
		c.Copies = func(context.Context) error { return nil }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Data is the node's data store, as the home uses it.
type Data interface {
	datapath.Remover
	datapath.Shaper
	// List returns the matching objects in a part of the store.
	List(part uint8, match func(metadata.Ino) bool) ([]metadata.Ino, error)
	// Room reports whether the disk has space for more metadata.
	Room() bool
}

// Client is this node's client, as the homes of its open files use it.
type Client interface {
	metadata.Recaller
	metadata.Woken
}

// RevokeFunc drops whatever this node's client and mount have cached for keys.
type RevokeFunc func(keys []metadata.LeaseKey)

// Server is this node as the home of its part of the live realm. Its methods that change directories are those
// of leased.
type Server struct {
	*leased
	cfg    Config
	node   node.Node
	log    *logrus.Entry
	client atomic.Pointer[Client]
	forget atomic.Pointer[RevokeFunc]
	space  spaceCheck
	kick   chan struct{} // another daemon has restarted; one token is enough

	mu    sync.Mutex
	runs  map[metadata.NodeID]metadata.Run // guarded by mu; the last known run of each node's client
	swept Sweep                            // guarded by mu
}

var (
	_ metadata.NodeStore = (*Server)(nil)
	_ metadata.Leaser    = (*Server)(nil)
)

// Open opens the store of the home. The home serves nothing before its handlers are registered, and does no background
// work before Start.
func Open(cfg Config) (*Server, error) {
	cfg.setDefaults()
	s := &Server{cfg: cfg, node: cfg.Node, log: cfg.Node.Log(), kick: make(chan struct{}, 1), runs: make(map[metadata.NodeID]metadata.Run)}
	st, err := s.openStore()
	if err != nil {
		return nil, fmt.Errorf("metadata store %s: %w", cfg.Dir, err)
	}
	s.leased = s.newLeased(st)
	if err := s.recoverOrphans(); err != nil {
		_ = s.Close() // report the error that came first
		return nil, err
	}
	return s, nil
}

// Start begins the background work: recovery, removal, sweep, splits.
func (s *Server) Start() {
	s.startWide()
	s.node.Spawn(s.tx.Run)
	s.node.Spawn(s.files.Serve)
	s.node.Spawn(s.locks.Serve)
	s.node.Spawn(s.followHolders)
	s.node.Spawn(s.followOrphans)
	s.node.Spawn(s.retryRemovals)
	s.node.Spawn(s.sweepLoop)
}

// Close closes the store. All goroutines that Start began must have ended.
func (s *Server) Close() error { return s.leased.Close() }

// SetClient sets the client of this node, which reports its open files.
func (s *Server) SetClient(c Client) { s.client.Store(&c) }

// SetRevoke sets the function that drops cached answers of this node's client and mount.
func (s *Server) SetRevoke(f RevokeFunc) { s.forget.Store(&f) }

// Transactions returns the statistics of transactions over several homes.
func (s *Server) Transactions() txn.Stats { return s.tx.Stats() }

// OpenFiles counts the home's open files and orphans.
func (s *Server) OpenFiles() opens.Stats { return s.files.Stats() }

// FileLocks returns the statistics of the locks on the home's files.
func (s *Server) FileLocks() locks.Stats { return s.locks.Stats() }

// Handlers returns the handlers of the ops that a home serves.
func (s *Server) Handlers() node.Handlers {
	h := make(node.Handlers)
	for _, part := range []node.Handlers{
		s.namespaceHandlers(), s.leaseHandlers(), s.openHandlers(), s.lockHandlers(), s.shardHandlers(), s.txHandlers(),
	} {
		for op, f := range part {
			h[op] = redirects(f)
		}
	}
	for _, part := range []node.Handlers{s.xattrHandlers(), s.extentHandlers(), s.checkHandlers()} {
		maps.Copy(h, part)
	}
	for op, f := range h {
		if op.ForHome() {
			h[op] = s.fenced(f)
		}
	}
	return h
}

// fenced answers only while no other node can stand in for the home. If one may have stood in meanwhile, such as while
// this daemon was stopped, it drops answers of repeatable ops and of close reports. Other changes were refused then.
func (s *Server) fenced(h rpc.Handler) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		if err := s.awaitLease(ctx); err != nil {
			return err
		}
		err := h(ctx, r, resp)
		switch {
		case err == nil && (r.Op.Repeatable() || r.Op == wire.OpClosed):
			err = s.awaitLease(ctx)
		case errors.Is(err, metadata.ErrUnknownOutcome) && errors.Is(err, syscall.EAGAIN) && r.Op.Repeatable():
			err = fmt.Errorf("%w: %w", metadata.ErrMoved, err) // it may be repeated at the stand-in
		}
		return err
	}
}

// leaseTime is how long a call waits for a home whose lease has ended, such as a home that has just started.
const leaseTime = 5 * time.Second

func (s *Server) awaitLease(ctx context.Context) error {
	err := s.cfg.Serves()
	if err == nil || errors.Is(err, syscall.EAGAIN) {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // an inline op must not wait
	}
	until, cancel := context.WithTimeout(ctx, leaseTime)
	defer cancel()
	for b := retry.New(time.Millisecond, 100*time.Millisecond, 0); b.Wait(until); {
		if err = s.cfg.Serves(); err == nil || errors.Is(err, syscall.EAGAIN) {
			break
		}
	}
	return err
}

// Here returns why this node's client must not use the home. It waits for a lease as other nodes do.
func (s *Server) Here() error { return s.awaitLease(context.Background()) }

// near reports whether id is this node, whose client and data are called directly.
func (s *Server) near(id metadata.NodeID) bool { return id == s.node.Self() && !s.cfg.StandIn }

// askTime bounds one answer of a node to the sweep or to a check.
const askTime = 30 * time.Second

// ask makes a call of a sweep or a check to a node, which may be this one.
func (s *Server) ask(ctx context.Context, id metadata.NodeID, op wire.Op, q, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return s.node.Call(ctx, id, op, q, reply)
}

// allServe returns an error that names a node whose home does not serve; nil if all serve.
func (s *Server) allServe() error {
	m := s.node.View().Map
	for _, n := range m.Nodes {
		if !m.HomeServes(n.ID) {
			return fmt.Errorf("%s is %v: %w", n.Host, n.State, syscall.EHOSTDOWN)
		}
	}
	return nil
}
