package rpc

import (
	"context"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/wire"
)

// A caller that is alone on a connection reads its own answer, which spares it the
// way over another goroutine. For that serve leaves the reading when nothing is
// under way; the next call takes it, and leaves it again with its answer. What is
// not its own answer, or does not come soon, it hands over to serve, which has the
// reading until calls have been alone for a while. Of a connection that nobody
// reads serve takes the reading back after a moment, to see it end.

const (
	// unwatched is how long an unused connection is read by nobody.
	unwatched = 10 * time.Millisecond
	// unchecked is how long it is taken to be alive without a look at it.
	unchecked = time.Millisecond
	// loneAnswers is how many answers serve reads, each the only one that is due,
	// after several were.
	loneAnswers = 8
)

// ownAnswer is the answer that a caller is reading.
type ownAnswer struct {
	w     *waiter // nil if serve reads
	ctx   context.Context
	until time.Time // when it has to be complete; set when it stalls
	over  bool      // its caller has given up
}

// leftBehind is what a caller hands over with the reading.
type leftBehind struct {
	ahead bool        // a header was read
	h     wire.Header // that of another's answer
	err   error       // or the connection has ended
}

// offer gives the reading to w, the only call, if nobody has it, or else to serve.
// Called with mu.
func (c *clientConn) offer(w *waiter) {
	if !c.free {
		return
	}
	c.free = false
	if w.reads = w.left() > patience; !w.reads {
		c.baton <- struct{}{}
	}
}

// ended reports whether the connection that nobody reads has ended: a call on it
// would be lost.
func (c *clientConn) ended() bool {
	c.mu.Lock()
	look := c.free && time.Since(c.silent) > unchecked
	c.mu.Unlock()
	if !look {
		return false
	}
	ended := false
	err := c.w.raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ended = err == nil && n == 0 || err != nil && err != unix.EAGAIN && err != unix.EINTR
	})
	return ended || err != nil
}

// watch gives the reading to serve if nobody has it.
func (c *clientConn) watch() {
	c.mu.Lock()
	free := c.free
	c.free = false
	c.mu.Unlock()
	if free {
		c.baton <- struct{}{}
	}
}

// handOver gives the reading, which w has, to serve.
func (c *clientConn) handOver(w *waiter) {
	w.reads = false
	c.baton <- struct{}{}
}

// readOwn reads the answer to w, which has the reading. If that has not ended w, it
// is to be waited for.
func (c *clientConn) readOwn(ctx context.Context, w *waiter, tag uint32) (ended bool, err error) {
	var h wire.Header
	err = c.r.soon(&h, patience)
	switch {
	case err == errIdle:
		c.handOver(w)
		return false, nil
	case err == nil && h.Tag != tag:
		c.left = leftBehind{ahead: true, h: h}
		c.handOver(w)
		return false, nil
	case err == nil:
		c.own = ownAnswer{w: w, ctx: ctx}
		err = c.receive(h)
	}
	over := c.own.over
	c.own = ownAnswer{}
	if err == nil {
		c.leave(w)
		<-w.done
		return true, w.err
	}
	c.left = leftBehind{err: err}
	c.handOver(w)
	if !over {
		return false, nil
	}
	<-w.done
	if ctx.Err() != nil {
		return true, ctxErrno(ctx)
	}
	return true, syscall.ETIMEDOUT
}

// leave gives the reading, which w has, to nobody; to serve if there are other calls.
func (c *clientConn) leave(w *waiter) {
	w.reads = false
	c.mu.Lock()
	c.free = len(c.pending) == 0 && c.dead == nil
	free := c.free
	c.mu.Unlock()
	if !free {
		c.baton <- struct{}{}
	}
}

// stalled is asked when no more has come of an answer for a moment. A caller goes on
// with its own, until it is over with the frame's time, or with a grace after it
// has given up. It has the reading.
func (c *clientConn) stalled() bool {
	o := &c.own
	if o.w == nil {
		return false
	}
	now := time.Now()
	if o.until.IsZero() {
		o.until = now.Add(c.r.frame)
	}
	if !o.over && (o.ctx.Err() != nil || !now.Before(o.w.expiry)) {
		o.over = true
		if t := now.Add(grace); t.Before(o.until) {
			o.until = t
		}
	}
	if !now.Before(o.until) {
		return false
	}
	c.r.until = now.Add(min(patience, o.until.Sub(now)))
	return c.conn.SetReadDeadline(c.r.until) == nil
}

// pause returns when serve has the reading again that it has left.
func (c *clientConn) pause() error {
	for c.await() {
		left := c.left
		c.left = leftBehind{}
		switch {
		case left.err != nil:
			return left.err
		case left.ahead:
			c.r.expect(int(left.h.Body + left.h.Data))
			if err := c.receive(left.h); err != nil {
				return err
			}
		}
		if !c.rests() {
			return nil
		}
	}
	return nil
}

// watchable reports whether it is known how to look whether the connection has
// ended. Of others serve always has the reading.
func (c *clientConn) watchable() bool { return c.w.raw != nil }

// rests gives the reading, which serve has, to nobody, if the calls of late were
// alone.
func (c *clientConn) rests() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.watchable() || len(c.pending) > 0 || c.dead != nil {
		return false
	}
	if c.crowd > 0 {
		c.crowd--
		return false
	}
	c.free = true
	return true
}

// await returns when serve has the reading again; false if it has taken it back
// from nobody.
func (c *clientConn) await() bool {
	t := time.NewTimer(unwatched)
	defer t.Stop()
	for {
		select {
		case <-c.baton:
			return true
		case <-t.C:
			if c.takeBack() {
				return false
			}
			t.Reset(unwatched)
		}
	}
}

// takeBack gives serve the reading of a connection that was not used for a while.
func (c *clientConn) takeBack() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.free || time.Since(c.silent) < unwatched {
		return false
	}
	c.free = false
	return true
}
