package locks

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Config configures Locks.
type Config struct {
	// Ready waits until the locks from before a restart are known, refuses clients that must be refused, and otherwise
	// calls do; the file is not closed before do returns. nil: do is called at once.
	Ready func(ctx context.Context, by metadata.Holder, ino metadata.Ino, do func()) error
	// Wake makes a client repeat its requests.
	Wake func(ctx context.Context, node metadata.NodeID, waiters []uint64) error
	Run  metadata.Run     // of the home: versions of its locks are later than in earlier runs
	Now  func() time.Time // nil is time.Now
}

// Locks has the locks on the files of one home.
type Locks struct {
	*Table
	cfg  Config
	kick chan struct{} // signals clients to wake; capacity 1

	mu       sync.Mutex
	woken    map[metadata.NodeID][]uint64 // under mu
	arriving map[*arrival]struct{}        // under mu: requests without a number that wait for Ready
}

// arrival is a request that may be cancelled before it reaches the table. The table refuses numbered requests itself.
type arrival struct {
	l         held
	ino       metadata.Ino
	cancelled bool // guarded by Locks.mu
}

var _ metadata.Locks = (*Locks)(nil)

// New returns Locks without any lock.
func New(cfg Config) *Locks {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	l := &Locks{cfg: cfg, kick: make(chan struct{}, 1), woken: make(map[metadata.NodeID][]uint64), arriving: make(map[*arrival]struct{})}
	l.Table = NewTable(uint64(cfg.Run), l.granted)
	return l
}

// Lock implements metadata.Locks.
func (l *Locks) Lock(ctx context.Context, by metadata.Holder, q metadata.LockReq) (metadata.LockAnswer, error) {
	a := &arrival{l: held{by.Node, q.Lock}, ino: q.Ino}
	if q.Waiter == 0 {
		l.arrive(a, q.Cancel)
	}
	defer l.leave(a)
	var answer metadata.LockAnswer
	var refused error
	err := l.ready(ctx, by, q.Ino, func() {
		if l.leave(a) {
			refused = fmt.Errorf("lock on %v: the request was cancelled: %w", q.Ino, syscall.EINTR)
			return
		}
		answer, refused = l.Table.Lock(by.Node, q, l.cfg.Now())
	})
	return answer, cmp.Or(err, refused)
}

// arrive registers a request that waits for Ready, or cancels equal waiting requests.
func (l *Locks) arrive(a *arrival, cancel bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !cancel {
		l.arriving[a] = struct{}{}
		return
	}
	for b := range l.arriving {
		b.cancelled = b.cancelled || b.l == a.l && b.ino == a.ino
	}
}

// leave unregisters a, and reports whether it was cancelled.
func (l *Locks) leave(a *arrival) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.arriving, a)
	return a.cancelled
}

// TestLock implements metadata.Locks.
func (l *Locks) TestLock(ctx context.Context, by metadata.Holder, ino metadata.Ino, want metadata.Lock) (metadata.NodeID, metadata.Lock, error) {
	var node metadata.NodeID
	var h metadata.Lock
	err := l.ready(ctx, by, ino, func() { node, h = l.Test(by.Node, ino, want) })
	return node, h, err
}

func (l *Locks) ready(ctx context.Context, by metadata.Holder, ino metadata.Ino, do func()) error {
	if l.cfg.Ready == nil {
		do()
		return nil
	}
	return l.cfg.Ready(ctx, by, ino, do)
}

// NodeClosed releases all locks and requests of a node on a file.
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

// wakeTime limits a call that wakes a node; waiters repeat their requests anyway.
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
				_ = l.cfg.Wake(ctx, node, waiters) // waiters repeat their requests anyway
			})
		}
	}
}
