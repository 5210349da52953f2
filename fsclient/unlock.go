package fsclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// unlockAgain is when a home that did not answer is told of the end of a lock
	// again.
	unlockAgain = 200 * time.Millisecond
	// unlockWait is how long who wants a lock, and does not wait for others, waits
	// for the end of his own ones.
	unlockWait = 5 * time.Second
)

// ending is the ends of locks of one owner that are still to come.
type ending struct {
	n    int
	done chan struct{} // closed with the last one
}

type ownerOf struct {
	lockOwner
	id uint64
}

func ownerIn(q metadata.LockReq) ownerOf {
	return ownerOf{lockOwner{q.Ino, q.Kind}, q.Owner}
}

// UnlockAll ends all locks of an owner on a file. It makes no call if there
// are none, as there are none of nearly all who close a file.
func (c *Client) UnlockAll(ctx context.Context, ino metadata.Ino, kind metadata.LockKind, owner uint64) error {
	if !c.locks.mayHave(ino, kind, owner) {
		return nil
	}
	err := c.Lock(ctx, ino, metadata.Lock{Kind: kind, Owner: owner, End: metadata.MaxLockEnd}, false)
	if errors.Is(err, syscall.ENOLCK) {
		return nil
	}
	return err
}

// unlock ends locks when all that was written on this node has gone out. Where
// that is interrupted, or the home does not answer, it is not an error: it is
// done later, until the home is given up.
func (c *Client) unlock(ctx context.Context, q metadata.LockReq) error {
	err := c.unlockOnce(ctx, q)
	if ctx.Err() == nil && !c.mayReturn(q.Ino.Home(), err) || err == nil {
		c.locks.ended(q, err)
		return err
	}
	if c.unlockLater(q) {
		return nil
	}
	return err
}

// unlockOnce tries to. Who has the lock next sees what was written, and how long
// the file is.
func (c *Client) unlockOnce(ctx context.Context, q metadata.LockReq) error {
	c.locks.begin(q)
	defer c.locks.end(q)
	flushed := c.flushOpen(ctx, q.Ino)
	if flushed != nil && (ctx.Err() != nil || c.mayReturn(q.Ino.Home(), flushed)) {
		return flushed
	}
	if err := c.Settle(ctx); err != nil {
		return err
	}
	if _, err := c.ask(ctx, q); err != nil {
		return err
	}
	return flushed
}

// flushOpen is Flush of a file that may be open here.
func (c *Client) flushOpen(ctx context.Context, ino metadata.Ino) error {
	f := c.files.holdIno(ino)
	if f == nil {
		return nil
	}
	defer c.release(f)
	return f.Flush(ctx)
}

// unlockLater has the client end locks by itself; see later.
func (c *Client) unlockLater(q metadata.LockReq) bool {
	return c.later(q, func(ctx context.Context) error {
		err := c.unlockOnce(ctx, q)
		if ctx.Err() == nil && !c.mayReturn(q.Ino.Home(), err) {
			c.locks.ended(q, err)
		}
		return err
	})
}

// later has the client go on by itself with once, which ends what the owner of q has, until
// the file's home has heard of it or is given up; false if the client is closed, or the
// file is, whose home ends all by that. Until then the file stays open for
// its home, and its owner gets no new locks.
func (c *Client) later(q metadata.LockReq, once func(ctx context.Context) error) bool {
	f := c.files.holdIno(q.Ino)
	if f == nil && !q.Ino.Sealed() {
		return false
	}
	ok := c.locks.endLater(q, func() {
		c.wg.Go(func() {
			c.goOn(q, once)
			if f != nil {
				c.release(f)
			}
		})
	})
	if !ok && f != nil {
		c.release(f)
	}
	return ok
}

func (c *Client) goOn(q metadata.LockReq, once func(ctx context.Context) error) {
	defer c.locks.endedLater(q)
	for {
		err := once(c.ctx)
		if c.ctx.Err() != nil {
			return // the homes end them with this client's life
		}
		if err == nil || !c.mayReturn(q.Ino.Home(), err) {
			if err != nil {
				c.cfg.Log.WithError(err).Debug("a home was not told of the end of a lock")
			}
			return
		}
		retry.Pause(c.ctx, unlockAgain)
	}
}

// awaitEnds waits until none of the owner's locks on the file has to be ended
// any more, so that no such end ends the one that it gets now.
func (c *Client) awaitEnds(ctx context.Context, q metadata.LockReq, wait bool) error {
	done := c.locks.endsOf(q)
	if done == nil {
		return nil
	}
	if !wait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, unlockWait)
		defer cancel()
	}
	for ; done != nil; done = c.locks.endsOf(q) {
		if err := await(ctx, done); err != nil {
			return fmt.Errorf("lock on %v, whose home does not know of the end of the last one: %w", q.Ino, err)
		}
	}
	return nil
}

// endLater notes an end that is to come, and calls start; false if the client is
// closed.
func (t *lockTable) endLater(q metadata.LockReq, start func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	e := t.ending[ownerIn(q)]
	if e == nil {
		e = &ending{done: make(chan struct{})}
		t.ending[ownerIn(q)] = e
	}
	e.n++
	start()
	return true
}

// endedLater takes back what endLater has noted.
func (t *lockTable) endedLater(q metadata.LockReq) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.ending[ownerIn(q)]
	if e.n--; e.n == 0 {
		delete(t.ending, ownerIn(q))
		close(e.done)
	}
}

// endsOf is closed when there is none to come of those that there are; nil is
// none.
func (t *lockTable) endsOf(q metadata.LockReq) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.ending[ownerIn(q)]; e != nil {
		return e.done
	}
	return nil
}

// ended notes that a lock has ended, or with err that its home will never be told.
func (t *lockTable) ended(q metadata.LockReq, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.files[q.Ino]; m != nil && err != nil { // a home that comes back is not to have it
		m.fold()
		m.set = m.set.With(q.Lock)
	}
	if q.Start == 0 && q.End == metadata.MaxLockEnd {
		t.hasNone(q)
	}
}

// stop has no more ends come later.
func (t *lockTable) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}
