package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
	metalocks "github.com/bivouacfs/bivouac/metadata/locks"
)

const (
	// askAgain is about how long a waiter waits for a wake-up before it asks again: its home may have restarted.
	askAgain = 2 * time.Second
	// cancelTime bounds the call that removes a waiter from the home's queue.
	cancelTime = 2 * time.Second
)

// Files gives a Locker access to the client that has the files open.
type Files interface {
	// Locks returns the locks of the home of a live file.
	Locks(ino metadata.Ino) (metadata.Locks, error)
	// HomeAlive returns nil unless the cluster map has given the home up.
	HomeAlive(home metadata.NodeID) error
	// Hold keeps a live file open for its home until release is called; release is nil if the file is not open here.
	Hold(ino metadata.Ino) (release func())
	// Flush sends this node's writes to the file and publishes the size to its home.
	Flush(ctx context.Context, ino metadata.Ino) error
	// Drain waits until all buffered writes of this node have arrived.
	Drain(ctx context.Context) error
}

// Config says for whom a Locker locks. All fields are required.
type Config struct {
	Holder metadata.Holder // this node and the run of its client
	Files  Files
	Log    *logrus.Entry
}

// Locker acquires and releases the locks of one node.
type Locker struct {
	cfg    Config
	table  table
	sealed *metalocks.Locks // of files of datasets

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // retries
}

var _ metadata.Woken = (*Locker)(nil)

// New returns a Locker without locks.
func New(cfg Config) *Locker {
	l := &Locker{cfg: cfg}
	l.table.init(uint64(cfg.Holder.Run))
	l.sealed = metalocks.New(metalocks.Config{Wake: func(_ context.Context, _ metadata.NodeID, ws []uint64) error {
		l.table.wake(ws)
		return nil
	}})
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.wg.Go(func() { l.sealed.Serve(l.ctx) })
	return l
}

// Close ends the retries. The homes release the locks when they learn that the run of this client has ended.
func (l *Locker) Close() {
	l.table.close()
	l.cancel()
	l.wg.Wait()
}

// Lock acquires lk on a file that is open here, and waits for it if wait is set; ctx ends the wait with EINTR. The type
// Unlocked releases the lock. An unlock that cannot reach the home is retried in the background and is no error.
func (l *Locker) Lock(ctx context.Context, ino metadata.Ino, lk metadata.Lock, wait bool) error {
	q := metadata.LockReq{Ino: ino, Lock: lk}
	if lk.Type == metadata.Unlocked {
		return l.unlock(ctx, q)
	}
	if err := l.awaitRetries(ctx, q, wait); err != nil {
		return err
	}
	if err := l.beforeDowngrade(ctx, q); err != nil {
		return err
	}
	obtain := l.try
	if wait {
		obtain = l.wait
	}
	unknown, err := obtain(ctx, &q)
	if unknown {
		l.cancelLater(q)
	}
	return err
}

// Test returns a lock that conflicts with lk, and the node of its owner; if there is none, a lock of type Unlocked.
func (l *Locker) Test(ctx context.Context, ino metadata.Ino, lk metadata.Lock) (node metadata.NodeID, held metadata.Lock, err error) {
	s, err := l.locksOf(ino)
	if err != nil {
		return 0, metadata.Lock{}, err
	}
	return s.TestLock(ctx, l.cfg.Holder, ino, lk)
}

// Wake implements metadata.Woken.
func (l *Locker) Wake(waiters []uint64) { l.table.wake(waiters) }

// Held returns the locks of this node on a file, for a home that has restarted.
func (l *Locker) Held(ino metadata.Ino) []metadata.Lock { return l.table.held(ino) }

// FileClosed forgets the locks of a file that is no longer open here.
func (l *Locker) FileClosed(ino metadata.Ino) { l.table.fileClosed(ino) }

// try requests q once. With an error, unknown reports that the home may have granted q, or may still grant it.
func (l *Locker) try(ctx context.Context, q *metadata.LockReq) (unknown bool, err error) {
	l.table.begin(*q)
	defer l.table.end(*q)
	if _, err = l.ask(ctx, *q); errors.Is(err, syscall.EAGAIN) {
		l.yield(ctx, *q)
	}
	return err != nil && (ctx.Err() != nil || l.retriable(q.Ino.Home(), err)), err
}

// beforeDowngrade sends this node's writes if q is a read lock that replaces a write lock: other readers may follow.
func (l *Locker) beforeDowngrade(ctx context.Context, q metadata.LockReq) error {
	if q.Type != metadata.ReadLock || !l.table.holds(q, metadata.WriteLock) {
		return nil
	}
	if err := l.cfg.Files.Flush(ctx, q.Ino); err != nil {
		return err
	}
	return l.cfg.Files.Drain(ctx)
}

// yield releases the old lock of a flock whose conversion was refused or is queued, as flock(2) does: otherwise two
// readers that both want to write would wait for each other. It returns false if there is no old lock.
func (l *Locker) yield(ctx context.Context, q metadata.LockReq) bool {
	if q.Kind != metadata.FlockLock || !l.table.holds(q, metadata.ReadLock, metadata.WriteLock) {
		return false
	}
	q.Type, q.Waiter = metadata.Unlocked, 0
	if err := l.unlock(ctx, q); err != nil {
		l.cfg.Log.WithError(err).WithField("inode", q.Ino.String()).Debug("old lock of a converted flock not released at the file's home")
	}
	return true
}

// wait is try that waits until q is granted.
func (l *Locker) wait(ctx context.Context, q *metadata.LockReq) (unknown bool, err error) {
	l.table.begin(*q)
	defer l.table.end(*q)
	woken := l.table.enqueue(q)
	defer l.table.dequeue(q.Waiter)
	for {
		granted, err := l.ask(ctx, *q)
		if granted || err != nil && ctx.Err() == nil && !l.retriable(q.Ino.Home(), err) {
			return false, err
		}
		if err == nil && l.yield(ctx, *q) {
			if l.awaitRetries(ctx, *q, true) != nil { // ctx has ended
				return l.abandon(ctx, *q)
			}
			continue
		}
		t := time.NewTimer(askAgain/2 + rand.N(askAgain))
		select {
		case <-woken:
			woken = l.table.await(q.Waiter)
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return l.abandon(ctx, *q)
		}
		t.Stop()
	}
}

// abandon removes an interrupted waiter from the home's queue. If the lock was granted meanwhile, the caller has it. A
// converted flock is released instead while the unlock of its old lock is still retried, because that retry would end
// the new lock. unknown reports that the home has not answered.
func (l *Locker) abandon(ctx context.Context, q metadata.LockReq) (unknown bool, err error) {
	errno := wait.Errno(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer cancel()
	q.Cancel = true
	converted := q.Kind == metadata.FlockLock && l.table.retries(q) != nil
	granted, err := l.ask(ctx, q)
	if err == nil && granted {
		if !converted {
			return false, nil
		}
		q.Type, q.Waiter, q.Cancel = metadata.Unlocked, 0, false
		_ = l.unlock(ctx, q) // retried if it is not answered
	}
	return err != nil, fmt.Errorf("lock on %v: %w", q.Ino, errno)
}

// retriable reports whether err means that a live home did not answer.
func (l *Locker) retriable(home metadata.NodeID, err error) bool {
	return rpc.Unanswered(err) && l.cfg.Files.HomeAlive(home) == nil
}

// ask makes one call, and mirrors a granted lock.
func (l *Locker) ask(ctx context.Context, q metadata.LockReq) (granted bool, err error) {
	a, err := l.call(ctx, q)
	if err != nil {
		return false, err
	}
	if a.Granted {
		l.table.granted(q, a.Version)
	}
	return a.Granted, nil
}

func (l *Locker) call(ctx context.Context, q metadata.LockReq) (metadata.LockAnswer, error) {
	s, err := l.locksOf(q.Ino)
	if err != nil {
		return metadata.LockAnswer{}, err
	}
	return s.Lock(ctx, l.cfg.Holder, q)
}

func (l *Locker) locksOf(ino metadata.Ino) (metadata.Locks, error) {
	if ino.Sealed() {
		return l.sealed, nil
	}
	return l.cfg.Files.Locks(ino)
}
