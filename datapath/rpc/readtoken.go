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
	reclaimAfter = 10 * time.Millisecond
	// unchecked is how long it is taken to be alive without a look at it.
	pollAfter = time.Millisecond
	// readerReplies is how many answers serve reads, each the only one that is due,
	// after several were.
	readerReplies = 8
)

// ownReply is the answer that a caller is reading.
type ownReply struct {
	w     *waiter // nil if serve reads
	ctx   context.Context
	until time.Time // when it has to be complete; set when it stalls
	over  bool      // its caller has given up
}

// handedOver is what a caller hands over with the reading.
type handedOver struct {
	ahead bool        // a header was read
	h     wire.Header // that of another's answer
	err   error       // or the connection has ended
}

// offer gives the reading to w, the only call, if nobody has it, or else to serve.
// Called with mu.
func (c *clientConn) assignReader(w *waiter) {
	if !c.tokenFree {
		return
	}
	c.tokenFree = false
	if w.hasReadToken = w.left() > ctxPoll; !w.hasReadToken {
		c.readToken <- struct{}{}
	}
}

// peerClosed reports whether the connection that nobody reads has ended: a call on it
// would be lost.
func (c *clientConn) peerClosed() bool {
	c.mu.Lock()
	look := c.tokenFree && time.Since(c.lastReply) > pollAfter
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

// wakeReader gives the reading to serve if nobody has it.
func (c *clientConn) wakeReader() {
	c.mu.Lock()
	free := c.tokenFree
	c.tokenFree = false
	c.mu.Unlock()
	if free {
		c.readToken <- struct{}{}
	}
}

// passToken gives the reading, which w has, to serve.
func (c *clientConn) passToken(w *waiter) {
	w.hasReadToken = false
	c.readToken <- struct{}{}
}

// readOwn reads the answer to w, which has the reading. If that has not ended w, it
// is to be waited for.
func (c *clientConn) readOwn(ctx context.Context, w *waiter, tag uint32) (ended bool, err error) {
	var h wire.Header
	err = c.r.nextWithin(&h, ctxPoll)
	switch {
	case err == errIdle:
		c.passToken(w)
		return false, nil
	case err == nil && h.Tag != tag:
		c.handover = handedOver{ahead: true, h: h}
		c.passToken(w)
		return false, nil
	case err == nil:
		c.own = ownReply{w: w, ctx: ctx}
		err = c.receive(h)
	}
	over := c.own.over
	c.own = ownReply{}
	if err == nil {
		c.releaseToken(w)
		<-w.done
		return true, w.err
	}
	c.handover = handedOver{err: err}
	c.passToken(w)
	if !over {
		return false, nil
	}
	<-w.done
	if ctx.Err() != nil {
		return true, ctxErrno(ctx)
	}
	return true, syscall.ETIMEDOUT
}

// releaseToken gives the reading, which w has, to nobody; to serve if there are other calls.
func (c *clientConn) releaseToken(w *waiter) {
	w.hasReadToken = false
	c.mu.Lock()
	c.tokenFree = len(c.pending) == 0 && c.dead == nil
	free := c.tokenFree
	c.mu.Unlock()
	if !free {
		c.readToken <- struct{}{}
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
	c.r.deadline = now.Add(min(ctxPoll, o.until.Sub(now)))
	return c.conn.SetReadDeadline(c.r.deadline) == nil
}

// awaitToken returns when serve has the reading again that it has left.
func (c *clientConn) awaitToken() error {
	for c.takeToken() {
		left := c.handover
		c.handover = handedOver{}
		switch {
		case left.err != nil:
			return left.err
		case left.ahead:
			c.r.expect(int(left.h.Body + left.h.Data))
			if err := c.receive(left.h); err != nil {
				return err
			}
		}
		if !c.idleToken() {
			return nil
		}
	}
	return nil
}

// canPoll reports whether it is known how to look whether the connection has
// ended. Of others serve always has the reading.
func (c *clientConn) canPoll() bool { return c.w.raw != nil }

// idleToken gives the reading, which serve has, to nobody, if the calls of late were
// alone.
func (c *clientConn) idleToken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.canPoll() || len(c.pending) > 0 || c.dead != nil {
		return false
	}
	if c.pendingReplies > 0 {
		c.pendingReplies--
		return false
	}
	c.tokenFree = true
	return true
}

// takeToken returns when serve has the reading again; false if it has taken it back
// from nobody.
func (c *clientConn) takeToken() bool {
	t := time.NewTimer(reclaimAfter)
	defer t.Stop()
	for {
		select {
		case <-c.readToken:
			return true
		case <-t.C:
			if c.reclaimToken() {
				return false
			}
			t.Reset(reclaimAfter)
		}
	}
}

// reclaimToken gives serve the reading of a connection that was not used for a while.
func (c *clientConn) reclaimToken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.tokenFree || time.Since(c.lastReply) < reclaimAfter {
		return false
	}
	c.tokenFree = false
	return true
}
