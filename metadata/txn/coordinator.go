package txn

import (
	"context"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
)

// Store is what a coordinator needs of its own node's store.
type Store interface {
	metadata.Store
	metadata.Participant

	// Parent is what a new entry name of dir inherits from.
	Parent(ctx context.Context, dir metadata.Ino, name string) (metadata.Attr, error)
	// Begin starts a transaction. It ends by Decide or Release.
	Begin() (metadata.TxID, error)
	// Hold is Prepare for this node's own part, in several calls. The first
	// waits for other transactions; ESTALE if an entry is not as an edit says.
	Hold(ctx context.Context, tx metadata.TxID, edits []metadata.Edit) (metadata.Vote, error)
	// Decide does the own part and writes down that others have to do theirs.
	Decide(tx metadata.TxID, others []metadata.NodeID) error
	// Release aborts what is not decided.
	Release(tx metadata.TxID)
	// Forget is told when the others have done their part of a decision.
	Forget(tx metadata.TxID) error
	// Decisions is what is not forgotten, and the others of each.
	Decisions() (map[metadata.TxID][]metadata.NodeID, error)
	// Outcome is that of a transaction of this node.
	Outcome(ctx context.Context, tx metadata.TxID) (metadata.Outcome, error)
	// InDoubt is the transactions of other nodes that are prepared here.
	InDoubt() []metadata.InDoubt
	// GiveUp unlocks what a transaction in doubt holds.
	GiveUp(tx metadata.TxID) error
	// Climb is that of metadata.TxPeer.
	Ancestor(ctx context.Context, from, stop metadata.Ino) (metadata.Ino, error)
	// Fresh reports whether there was no earlier run of this store.
	Fresh() bool
}

// Timing is how patient a coordinator is. The zero value is the default.
type Timing struct {
	InDoubt time.Duration // before a participant asks for the end of a transaction; 1 s
	Retry   time.Duration // between two tries to end what is left over; 250 ms
	Lease   time.Duration // of the lock of moves; 3 s
	Call    time.Duration // for an answer of another home; 10 s
	Deliver time.Duration // for the answer to a decision, before the user gets his; 2 s
	Away    time.Duration // for a home that cannot be reached, but is not Down, to be back; 10 s
	Total   time.Duration // for an operation with all its tries; 30 s
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

// Config says what a Coordinator works with. Store is required.
type Config struct {
	Self  metadata.NodeID
	Store Store
	// Peer is another home; nil is that there are none.
	Peer func(metadata.NodeID) metadata.TxPeer
	// Down reports whether a node was given up; nil is never.
	Down func(metadata.NodeID) bool
	// EntryHome is the home of an entry of a directory of which was said that
	// it is spread in epoch, 0 if nothing was; nil is that of its directory.
	EntryHome func(dir metadata.Ino, name string, epoch metadata.Epoch) (metadata.NodeID, error)
	// DirHome is where the new directory name of parent shall be homed; nil is
	// here.
	DirHome func(ctx context.Context, parent metadata.Attr, name string) metadata.NodeID

	Timing Timing
	Now    func() time.Time // nil is time.Now
	Log    *logrus.Entry    // nil is silence
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
	if c.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		c.Log = logrus.NewEntry(l)
	}
	return nil
}

// Coordinator does the operations of one home that may concern others, and is
// this home to the coordinators of the others. Run has to run beside it.
type Coordinator struct {
	cfg        Config
	store      Store
	renameLock renameLock
	stats      counters
	turn       chan struct{} // room for the one move of a directory under way

	mu   sync.Mutex
	left map[metadata.TxID][]metadata.NodeID // under mu: decisions, and who has not answered them
}

var (
	_ metadata.TxPeer      = (*Coordinator)(nil)
	_ metadata.Directories = (*Coordinator)(nil)
)

// New makes a coordinator. It has to be there before the store is used, so that
// what an earlier run has decided comes to its end.
func New(cfg Config) (*Coordinator, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	left, err := cfg.Store.Decisions()
	if err != nil {
		return nil, fmt.Errorf("transactions: %w", err)
	}
	c := &Coordinator{cfg: cfg, store: cfg.Store, left: left, turn: make(chan struct{}, 1)}
	c.renameLock.init(cfg.Timing.Lease, cfg.Now)
	if !cfg.Store.Fresh() {
		c.renameLock.notBefore = cfg.Now().Add(cfg.Timing.Lease)
	}
	return c, nil
}

// Prepare is metadata.Participant.
func (c *Coordinator) Prepare(ctx context.Context, tx metadata.TxID, edits []metadata.Edit) (metadata.Vote, error) {
	return c.store.Prepare(ctx, tx, edits)
}

// Commit is metadata.Participant.
func (c *Coordinator) Commit(ctx context.Context, tx metadata.TxID) error {
	return c.store.Commit(ctx, tx)
}

// Abort is metadata.Participant.
func (c *Coordinator) Abort(ctx context.Context, tx metadata.TxID) error {
	return c.store.Abort(ctx, tx)
}

// Outcome is metadata.TxPeer.
func (c *Coordinator) Outcome(ctx context.Context, tx metadata.TxID) (metadata.Outcome, error) {
	return c.store.Outcome(ctx, tx)
}

// Ancestor is metadata.TxPeer.
func (c *Coordinator) Ancestor(ctx context.Context, from, stop metadata.Ino) (metadata.Ino, error) {
	return c.store.Ancestor(ctx, from, stop)
}

// peer is the home id, which may be this one.
func (c *Coordinator) peer(id metadata.NodeID) (metadata.TxPeer, error) {
	if id == c.cfg.Self {
		return c, nil
	}
	if c.cfg.Peer == nil || c.cfg.Down(id) {
		return nil, fmt.Errorf("home %d is down: %w", id, syscall.EHOSTDOWN)
	}
	return c.cfg.Peer(id), nil
}
