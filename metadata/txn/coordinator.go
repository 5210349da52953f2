package txn

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
)

// Store is the coordinator's view of its own store.
type Store interface {
	metadata.Store
	metadata.Participant

	// Parent returns the attributes that a new entry name of dir inherits.
	Parent(ctx context.Context, dir metadata.Ino, name string) (metadata.Attr, error)
	// Begin starts a transaction, which ends by Decide or Release.
	Begin() (metadata.TxID, error)
	// Hold is Prepare for this node's edits, in several calls. The first call waits for other transactions. It returns
	// ESTALE if an entry is not in the state that an edit expects.
	Hold(ctx context.Context, tx metadata.TxID, edits []metadata.Edit) (metadata.Vote, error)
	// Decide applies this node's edits and records the decision for the others.
	Decide(tx metadata.TxID, others []metadata.NodeID) error
	// Release aborts an undecided transaction.
	Release(tx metadata.TxID)
	// Forget removes a decision that all others have executed.
	Forget(tx metadata.TxID) error
	// Decisions returns the recorded decisions with their participants.
	Decisions() (map[metadata.TxID][]metadata.NodeID, error)
	// Outcome returns the outcome of a transaction of this node.
	Outcome(ctx context.Context, tx metadata.TxID) (metadata.Outcome, error)
	// InDoubt returns the prepared transactions of other nodes.
	InDoubt() []metadata.InDoubt
	// GiveUp releases the locks of a transaction in doubt.
	GiveUp(tx metadata.TxID) error
	// Ancestor is metadata.TxPeer.
	Ancestor(ctx context.Context, from, stop metadata.Ino) (metadata.Ino, error)
	// Fresh reports whether the store is new.
	Fresh() bool
}

// Timing has the timeouts of a coordinator. Zero values are the defaults.
type Timing struct {
	InDoubt time.Duration // before a participant asks for the outcome; 1 s
	Retry   time.Duration // between two rounds of recovery; 250 ms
	Lease   time.Duration // of the rename lock; 3 s
	Call    time.Duration // for the reply of another home; 10 s
	Deliver time.Duration // for the reply to a decision, before the caller gets its own; 2 s
	Away    time.Duration // for an unreachable home that is not Down; 10 s
	Total   time.Duration // for an operation with all its attempts; 30 s
}

func (t *Timing) setDefaults() {
	set := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	set(&t.InDoubt, time.Second)
	set(&t.Retry, 250*time.Millisecond)
	set(&t.Lease, 3*time.Second)
	set(&t.Call, 10*time.Second)
	set(&t.Deliver, 2*time.Second)
	set(&t.Away, 10*time.Second)
	set(&t.Total, 30*time.Second)
}

// Config configures a Coordinator. Store is required.
type Config struct {
	Self  metadata.NodeID
	Store Store
	// Peer returns another home; nil if there are none.
	Peer func(metadata.NodeID) metadata.TxPeer
	// Down reports whether a node was given up; nil means never.
	Down func(metadata.NodeID) bool
	// EntryHome returns the home of an entry of a directory that was split in epoch; epoch is 0 if no split is known.
	// nil means the home of the directory.
	EntryHome func(dir metadata.Ino, name string, epoch metadata.Epoch) (metadata.NodeID, error)
	// DirHome returns the home for the new directory name of parent; nil means this node.
	DirHome func(ctx context.Context, parent metadata.Attr, name string) metadata.NodeID

	Timing Timing
	Now    func() time.Time // nil is time.Now
	Log    *logrus.Entry    // nil discards
}

func (c *Config) validate() error {
	if c.Store == nil {
		return fmt.Errorf("transactions: no store: %w", syscall.EINVAL)
	}
	c.Timing.setDefaults()
	if c.DirHome == nil {
		c.DirHome = func(context.Context, metadata.Attr, string) metadata.NodeID { return c.Self }
	}
	if c.Down == nil {
		c.Down = func(metadata.NodeID) bool { return false }
	}
	if c.EntryHome == nil {
		c.EntryHome = func(dir metadata.Ino, _ string, _ metadata.Epoch) (metadata.NodeID, error) { return dir.Home(), nil }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Log = cmp.Or(c.Log, logrus.NewEntry(&logrus.Logger{Out: io.Discard}))
	return nil
}

// Coordinator runs the operations of one home that may involve others, and serves the coordinators of other homes. Run
// must run in parallel.
type Coordinator struct {
	cfg        Config
	store      Store
	renameLock renameLock
	stats      counters
	turn       chan struct{} // one move of a directory at a time

	mu     sync.Mutex
	left   map[metadata.TxID][]metadata.NodeID // guarded by mu: participants of each decision that have not replied
	doubts map[metadata.TxID][]metadata.NodeID // guarded by mu: participants of transactions that may be decided
}

var (
	_ metadata.TxPeer      = (*Coordinator)(nil)
	_ metadata.Directories = (*Coordinator)(nil)
)

// New returns a coordinator. It must be called before the store is used, so that decisions of an earlier run are
// delivered.
func New(cfg Config) (*Coordinator, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	left, err := cfg.Store.Decisions()
	if err != nil {
		return nil, fmt.Errorf("transactions: %w", err)
	}
	c := &Coordinator{cfg: cfg, store: cfg.Store, left: left, doubts: make(map[metadata.TxID][]metadata.NodeID), turn: make(chan struct{}, 1)}
	c.renameLock.init(cfg.Timing.Lease, cfg.Now)
	if !cfg.Store.Fresh() {
		c.renameLock.notBefore = cfg.Now().Add(cfg.Timing.Lease)
	}
	return c, nil
}

// Prepare implements metadata.Participant.
func (c *Coordinator) Prepare(ctx context.Context, tx metadata.TxID, edits []metadata.Edit) (metadata.Vote, error) {
	return c.store.Prepare(ctx, tx, edits)
}

// Commit implements metadata.Participant.
func (c *Coordinator) Commit(ctx context.Context, tx metadata.TxID) error {
	return c.store.Commit(ctx, tx)
}

// Abort implements metadata.Participant.
func (c *Coordinator) Abort(ctx context.Context, tx metadata.TxID) error {
	return c.store.Abort(ctx, tx)
}

// Outcome implements metadata.TxPeer.
func (c *Coordinator) Outcome(ctx context.Context, tx metadata.TxID) (metadata.Outcome, error) {
	return c.store.Outcome(ctx, tx)
}

// Ancestor implements metadata.TxPeer.
func (c *Coordinator) Ancestor(ctx context.Context, from, stop metadata.Ino) (metadata.Ino, error) {
	return c.store.Ancestor(ctx, from, stop)
}

// peer returns the home id, which may be this one.
func (c *Coordinator) peer(id metadata.NodeID) (metadata.TxPeer, error) {
	if id == c.cfg.Self {
		return c, nil
	}
	if c.cfg.Peer == nil || c.cfg.Down(id) {
		return nil, fmt.Errorf("home %d is down: %w", id, syscall.EHOSTDOWN)
	}
	return c.cfg.Peer(id), nil
}
