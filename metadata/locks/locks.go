// Package locks is the file locks of a home: flock(2) and fcntl(2), over the
// nodes of the job. Its one idea is that a request never waits in a call: it
// is put in a queue, its node is woken when it was granted, and asks again; so
// that any number of waiters cost a few bytes each, and one that was forgotten
// asks again by itself. Who does not wait any more says so, and a request of his that
// comes behind that is refused.
//
// Table is the memory: a state machine without I/O. Locks is the Table with the
// world around it.
//
// # Rules
//
// An owner is what a node's kernel calls one: a process (fcntl), or an open
// file (flock, fcntl's OFD locks). Locks of one owner replace each other byte by
// byte: they are split and merged. Who waits is served in turn; who does not
// wait may pass if nobody's lock stands in the way, and so may who has a lock
// already, or asks again. A wait that would close a circle of owners in this home is
// EDEADLK, for fcntl only; a circle over two homes is not found.
//
// A node has no locks on a file that it has closed; and none at all when it is
// lost, or its client starts again. After a restart of the home the nodes say
// what they had (metadata.Recall), and nothing is granted before all have.
//
// # Locks
//
//	Table.mu    held for a few steps in memory
//	  Locks.mu  who has to be woken
package locks

import (
	"context"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Config is what Locks needs of the world.
type Config struct {
	// Ready waits until it is known which locks there are, and refuses a
	// client that has to be refused; nil is always and nobody.
	Ready func(ctx context.Context, by metadata.Holder, ino metadata.Ino) error
	// Wake has a client ask again.
	Wake func(ctx context.Context, node metadata.NodeID, waiters []uint64) error
	Now  func() time.Time // nil is time.Now
}

// Locks is the locks of one home's files.
type Locks struct {
	*Table
	cfg  Config
	kick chan struct{} // somebody has to be woken; one is enough

	mu    sync.Mutex
	woken map[metadata.NodeID][]uint64 // under mu
}

var _ metadata.Locks = (*Locks)(nil)

// New is the locks of a home that has none.
func New(cfg Config) *Locks {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	l := &Locks{cfg: cfg, kick: make(chan struct{}, 1), woken: make(map[metadata.NodeID][]uint64)}
	l.Table = NewTable(uint64(cfg.Now().UnixNano()), l.granted)
	return l
}

// Lock is metadata.Locks.
func (l *Locks) Lock(ctx context.Context, by metadata.Holder, q metadata.LockReq) (metadata.LockAnswer, error) {
	if err := l.ready(ctx, by, q.Ino); err != nil {
		return metadata.LockAnswer{}, err
	}
	return l.Table.Lock(by.Node, q, l.cfg.Now())
}

// TestLock is metadata.Locks.
func (l *Locks) TestLock(ctx context.Context, by metadata.Holder, ino metadata.Ino, want metadata.Lock) (metadata.NodeID, metadata.Lock, error) {
	if err := l.ready(ctx, by, ino); err != nil {
		return 0, metadata.Lock{}, err
	}
	node, h := l.Test(by.Node, ino, want)
	return node, h, nil
}

func (l *Locks) ready(ctx context.Context, by metadata.Holder, ino metadata.Ino) error {
	if l.cfg.Ready == nil {
		return nil
	}
	return l.cfg.Ready(ctx, by, ino)
}

// NodeClosed ends all that a node has on a file.
func (l *Locks) NodeClosed(node metadata.NodeID, ino metadata.Ino) { l.Closed(node, ino, l.cfg.Now()) }

func (l *Locks) granted(node metadata.NodeID, waiter uint64) {
	l.mu.Lock()
	l.woken[node] = append(l.woken[node], waiter)
	l.mu.Unlock()
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// wakeTime bounds one call that wakes a node; who is not woken asks again.
const wakeTime = 2 * time.Second

// Serve wakes clients until ctx ends.
func (l *Locks) Serve(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.kick:
		}
		l.mu.Lock()
		woken := l.woken
		l.woken = make(map[metadata.NodeID][]uint64)
		l.mu.Unlock()
		for node, waiters := range woken {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, wakeTime)
				defer cancel()
				_ = l.cfg.Wake(ctx, node, waiters) // they ask again by themselves
			})
		}
	}
}
