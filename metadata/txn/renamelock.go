package txn

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/bivouacfs/bivouac/metadata"
)

const (
	renameLockWait    = 100 * time.Millisecond // how long one call waits for the lock
	renameLockWaiters = 64                     // maximum number of waiting calls
)

// renameLock is the lock for moving directories, kept at the home of RootIno.
type renameLock struct {
	lease time.Duration
	now   func() time.Time

	mu        sync.Mutex
	holder    metadata.TxID                           // guarded by mu; 0 is none
	until     time.Time                               // under mu: end of the holder's lease
	notBefore time.Time                               // guarded by mu: end of leases of an earlier run
	waiters   int                                     // under mu
	freed     chan struct{}                           // under mu; closed when the holder releases the lock
	over      *simplelru.LRU[metadata.TxID, struct{}] // under mu; recent releasers, whose late requests fail
}

// maxOver limits the remembered transactions: more than those that move directories while one request is in flight.
const maxOver = 1 << 12

func (m *renameLock) init(lease time.Duration, now func() time.Time) {
	m.lease, m.now, m.freed = lease, now, make(chan struct{})
	m.over, _ = simplelru.NewLRU[metadata.TxID, struct{}](maxOver, nil) // it fails only for a size of 0
}

// grant gives the lock to tx, or returns the channel to wait for and the longest time to wait.
func (m *renameLock) grant(tx metadata.TxID) (freed chan struct{}, left time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	switch {
	case m.over.Contains(tx):
		return nil, 0, fmt.Errorf("rename lock: transaction %v is done with it: %w", tx, syscall.ECANCELED)
	case now.Before(m.notBefore):
		return m.freed, m.notBefore.Sub(now), nil
	case m.holder != 0 && m.holder != tx && now.Before(m.until):
		return m.freed, m.until.Sub(now), nil
	}
	m.holder, m.until = tx, now.Add(m.lease)
	return nil, 0, nil
}

// enter counts a waiting call; false if there are too many.
func (m *renameLock) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiters >= renameLockWaiters {
		return false
	}
	m.waiters++
	return true
}

func (m *renameLock) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiters--
}

// LockRename implements metadata.TxPeer. Only the home of RootIno has the lock.
func (c *Coordinator) LockRename(ctx context.Context, tx metadata.TxID) error {
	if c.cfg.Self != metadata.RootIno.Home() {
		return fmt.Errorf("node %d does not keep the rename lock: %w", c.cfg.Self, syscall.EINVAL)
	}
	m := &c.renameLock
	busy := fmt.Errorf("rename lock: %w", syscall.EAGAIN)
	if !m.enter() {
		return busy
	}
	defer m.leave()
	limit := time.NewTimer(renameLockWait)
	defer limit.Stop()
	for {
		freed, left, err := m.grant(tx)
		if freed == nil {
			return err
		}
		if err := m.wait(ctx, freed, left, limit.C); err != nil {
			return fmt.Errorf("%w: %w", busy, err)
		}
	}
}

// wait returns nil when the lock may be free.
func (m *renameLock) wait(ctx context.Context, freed <-chan struct{}, left time.Duration, limit <-chan time.Time) error {
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-freed:
		return nil
	case <-t.C:
		return nil
	case <-limit:
		return context.DeadlineExceeded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// UnlockRename implements metadata.TxPeer.
func (c *Coordinator) UnlockRename(_ context.Context, tx metadata.TxID) error {
	m := &c.renameLock
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over.Add(tx, struct{}{})
	if m.holder != tx {
		return nil
	}
	m.holder = 0
	close(m.freed)
	m.freed = make(chan struct{})
	return nil
}

// lock takes the rename lock for the attempt.
func (a *attempt) lock(ctx context.Context) error {
	select {
	case a.c.turn <- struct{}{}:
	case <-ctx.Done():
		return gaveUp(ctx)
	}
	a.renameLocked = true // from here on unlock must be called
	for b := pauses(); ; {
		p, err := a.c.peer(metadata.RootIno.Home())
		if err != nil {
			return err
		}
		// The attempt must end well before the lease.
		a.until = a.c.cfg.Now().Add(a.c.cfg.Timing.Lease / 2)
		err = a.c.away(metadata.RootIno.Home(), p.LockRename(ctx, a.tx))
		if !retryable(err) {
			return err
		}
		if !b.Wait(ctx) {
			return gaveUp(ctx)
		}
	}
}

// unlock releases the rename lock, if the attempt holds it. If that fails, the lease ends by itself.
func (a *attempt) unlock(ctx context.Context) {
	if !a.renameLocked {
		return
	}
	<-a.c.turn
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.c.cfg.Timing.Deliver)
	defer cancel()
	p, err := a.c.peer(metadata.RootIno.Home())
	if err == nil {
		err = p.UnlockRename(ctx, a.tx)
	}
	if err != nil {
		a.c.cfg.Log.WithError(err).Debug("rename lock not released; its lease ends it")
	}
}

// isBelow reports whether dir is top or below it. The caller holds the rename lock.
func (c *Coordinator) isBelow(ctx context.Context, dir, top metadata.Ino) (bool, error) {
	for range metadata.MaxNodes * 16 {
		if dir == top || dir == metadata.RootIno {
			return dir == top, nil
		}
		p, err := c.peer(dir.Home())
		if err != nil {
			return false, err
		}
		up, err := c.ancestor(ctx, p, dir, top)
		if err != nil {
			return false, err
		}
		if up == dir {
			return false, fmt.Errorf("the way up from %v ends: %w", dir, syscall.EIO)
		}
		dir = up
	}
	return false, fmt.Errorf("tree above directory %v: %w", dir, syscall.ELOOP)
}

func (c *Coordinator) ancestor(ctx context.Context, p metadata.TxPeer, from, stop metadata.Ino) (metadata.Ino, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timing.Call)
	defer cancel()
	up, err := p.Ancestor(ctx, from, stop)
	return up, c.away(from.Home(), err)
}
