package fsclient

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/locks"
)

const (
	// askAgain is about how long a waiter waits to be woken before it asks
	// by itself: its home may have started again.
	askAgain = 2 * time.Second
	// cancelTime bounds the call that gives a place in a queue up.
	cancelTime = 2 * time.Second
)

var _ metadata.Woken = (*Client)(nil)

// lockTable is the locks of this node, as their homes have granted them, and
// who waits.
type lockTable struct {
	mu      sync.Mutex
	waiter  uint64                        // under mu: the last one
	waiting map[uint64]chan struct{}      // under mu: closed by Wake
	files   map[metadata.Ino]*mirror      // under mu
	owners  map[lockOwner]map[uint64]bool // under mu: that may have locks
	asking  map[ownerOf]int               // under mu: requests under way
	ending  map[ownerOf]*ending           // under mu: what is done later
	over    bool                          // under mu: nothing is
	sealed  *locks.Locks                  // of the files of datasets, which have no home
}

type lockOwner struct {
	ino  metadata.Ino
	kind metadata.LockKind
}

// mirror is the locks of this node on a file. Answers of the home can overtake
// each other; they are put in order by their versions when none is under way.
type mirror struct {
	set    locks.Set
	late   []versioned
	flying int
}

type versioned struct {
	version uint64
	lock    metadata.Lock
}

// init has the numbers of waiters begin behind first.
func (t *lockTable) init(first uint64) {
	t.waiter = first
	t.waiting = make(map[uint64]chan struct{})
	t.files = make(map[metadata.Ino]*mirror)
	t.owners = make(map[lockOwner]map[uint64]bool)
	t.asking = make(map[ownerOf]int)
	t.ending = make(map[ownerOf]*ending)
	t.sealed = locks.New(locks.Config{Wake: func(_ context.Context, _ metadata.NodeID, ws []uint64) error {
		t.wake(ws)
		return nil
	}})
}

// Lock gets l on a live or sealed file that is open here. It waits if it shall; ctx
// ends that with EINTR. With the type Unlocked it ends l, when all that was written
// on this node has arrived; what keeps it from that is no error, if it can be done
// later. Files of datasets are locked on this node only. Where it is not known
// whether the home has granted what this call did not get, that is made up for later.
func (c *Client) Lock(ctx context.Context, ino metadata.Ino, l metadata.Lock, wait bool) error {
	q := metadata.LockReq{Ino: ino, Lock: l}
	if l.Type == metadata.Unlocked {
		return c.unlock(ctx, q)
	}
	if err := c.awaitEnds(ctx, q, wait); err != nil {
		return err
	}
	obtain := c.tryLock
	if wait {
		obtain = c.waitForLock
	}
	unknown, err := obtain(ctx, &q)
	if unknown {
		c.withdrawLater(q)
	}
	return err
}

// tryLock gets q, if nobody has to be waited for. With an error, unknown says that
// the home may have granted it, or may do so yet.
func (c *Client) tryLock(ctx context.Context, q *metadata.LockReq) (unknown bool, err error) {
	c.locks.begin(*q)
	defer c.locks.end(*q)
	_, err = c.ask(ctx, *q)
	return err != nil && (ctx.Err() != nil || c.mayReturn(q.Ino.Home(), err)), err
}

// waitForLock is tryLock that waits.
func (c *Client) waitForLock(ctx context.Context, q *metadata.LockReq) (unknown bool, err error) {
	c.locks.begin(*q)
	defer c.locks.end(*q)
	woken := c.locks.enter(q)
	defer c.locks.leave(q.Waiter)
	for {
		granted, err := c.ask(ctx, *q)
		if granted || err != nil && ctx.Err() == nil && !c.mayReturn(q.Ino.Home(), err) {
			return false, err
		}
		t := time.NewTimer(askAgain/2 + rand.N(askAgain))
		select {
		case <-woken:
			woken = c.locks.again(q.Waiter)
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return c.giveUp(ctx, *q)
		}
		t.Stop()
	}
}

// mayReturn reports whether err says that a home did not answer that is not
// given up: who waits goes on waiting for it.
func (c *Client) mayReturn(home metadata.NodeID, err error) bool {
	return rpc.Unanswered(err) && c.alive(home) == nil
}

// giveUp takes a waiter out of the queue. If it was granted meanwhile, it is. unknown
// says that the home has not answered.
func (c *Client) giveUp(ctx context.Context, q metadata.LockReq) (unknown bool, err error) {
	errno := ctxErrno(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer cancel()
	q.Cancel = true
	granted, err := c.ask(ctx, q)
	if err == nil && granted {
		return false, nil
	}
	return err != nil, fmt.Errorf("lock on %v: %w", q.Ino, errno)
}

// ask makes one call, and takes note of what was granted.
func (c *Client) ask(ctx context.Context, q metadata.LockReq) (granted bool, err error) {
	a, err := c.askHome(ctx, q)
	if err != nil {
		return false, err
	}
	if a.Granted {
		c.locks.granted(q, a.Version)
	}
	return a.Granted, nil
}

func (c *Client) askHome(ctx context.Context, q metadata.LockReq) (a metadata.LockAnswer, err error) {
	err = c.onLocks(ctx, q.Ino, func(s metadata.Locks) error {
		a, err = s.Lock(ctx, c.holder(), q)
		return err
	})
	return a, err
}

// onLocks calls fn with whoever keeps the locks of ino.
func (c *Client) onLocks(ctx context.Context, ino metadata.Ino, fn func(metadata.Locks) error) error {
	if ino.Sealed() {
		return fn(c.locks.sealed)
	}
	s, err := c.homeOf(ino)
	if err != nil {
		return err
	}
	l, ok := s.(metadata.Locks)
	if !ok {
		return fmt.Errorf("a home without locks: %w", syscall.ENOLCK)
	}
	return fn(l)
}

// TestLock returns a lock that stands in the way of l, and whose it is;
// Unlocked if there is none.
func (c *Client) TestLock(ctx context.Context, ino metadata.Ino, l metadata.Lock) (node metadata.NodeID, held metadata.Lock, err error) {
	err = c.onLocks(ctx, ino, func(s metadata.Locks) error {
		var err error
		node, held, err = s.TestLock(ctx, c.holder(), ino, l)
		return err
	})
	return node, held, err
}

// Wake is metadata.Woken.
func (c *Client) Wake(waiters []uint64) { c.locks.wake(waiters) }

func (t *lockTable) wake(waiters []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range waiters {
		if ch, ok := t.waiting[w]; ok {
			select {
			case <-ch:
			default:
				close(ch)
			}
		}
	}
}

// enter gives q the number under which it waits.
func (t *lockTable) enter(q *metadata.LockReq) <-chan struct{} {
	t.mu.Lock()
	t.waiter++
	q.Waiter = t.waiter
	t.mu.Unlock()
	return t.again(q.Waiter)
}

// again has a waiter wait once more.
func (t *lockTable) again(waiter uint64) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[waiter] = make(chan struct{})
	return t.waiting[waiter]
}

func (t *lockTable) leave(waiter uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.waiting, waiter)
}

// begin notes that a request is under way.
func (t *lockTable) begin(q metadata.LockReq) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.files[q.Ino]
	if m == nil {
		m = &mirror{}
		t.files[q.Ino] = m
	}
	m.flying++
	t.asking[ownerIn(q)]++
	t.own(q)
}

// own notes that the owner of q may have it; t.mu is held.
func (t *lockTable) own(q metadata.LockReq) {
	if q.Type == metadata.Unlocked {
		return
	}
	k := lockOwner{q.Ino, q.Kind}
	if t.owners[k] == nil {
		t.owners[k] = make(map[uint64]bool)
	}
	t.owners[k][q.Owner] = true
}

// granted takes what the home has granted.
func (t *lockTable) granted(q metadata.LockReq, version uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.files[q.Ino]; m != nil {
		m.late = append(m.late, versioned{version, q.Lock})
	}
	t.own(q) // who has ended all its locks meanwhile has one again
}

// end is the end of a request that begin began.
func (t *lockTable) end(q metadata.LockReq) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := ownerIn(q); t.asking[k] > 1 {
		t.asking[k]--
	} else {
		delete(t.asking, k)
	}
	m := t.files[q.Ino]
	if m == nil {
		return
	}
	if m.flying--; m.flying > 0 {
		return
	}
	if m.fold(); len(m.set) == 0 {
		delete(t.files, q.Ino)
	}
}

// fold puts the answers in force, in the order of their versions.
func (m *mirror) fold() {
	slices.SortStableFunc(m.late, func(a, b versioned) int { return cmp.Compare(a.version, b.version) })
	for _, v := range m.late {
		m.set = m.set.With(v.lock)
	}
	m.late = nil
}

// of is the locks of this node on a file, for a home that has forgotten them.
func (t *lockTable) of(ino metadata.Ino) []metadata.Lock {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.files[ino]
	if m == nil {
		return nil
	}
	m.fold()
	return slices.Clone(m.set)
}

func (t *lockTable) mayHave(ino metadata.Ino, kind metadata.LockKind, owner uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.owners[lockOwner{ino, kind}][owner]
}

// hasNone notes that the owner of q has no locks on the file; t.mu is held.
func (t *lockTable) hasNone(q metadata.LockReq) {
	k := lockOwner{q.Ino, q.Kind}
	if delete(t.owners[k], q.Owner); len(t.owners[k]) == 0 {
		delete(t.owners, k)
	}
}

// closed forgets a file that is not open here any more.
func (t *lockTable) closed(ino metadata.Ino) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.files[ino]; m != nil && m.flying == 0 {
		delete(t.files, ino)
	}
	for _, kind := range []metadata.LockKind{metadata.PosixLock, metadata.FlockLock} {
		delete(t.owners, lockOwner{ino, kind})
	}
}
