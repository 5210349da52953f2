package rpc

import (
	"context"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
)

// With one call outstanding the caller reads the socket itself, which saves a goroutine switch; with more, serve
// demultiplexes. serve releases the read token when no call is outstanding; the next call takes it and releases it with
// its reply. If another reply arrives first, or its own not soon, the caller passes the token to serve, which keeps it
// until several calls in a row were alone. serve takes the token of an unused connection back, to notice when the peer
// closes it.

const (
	// reclaimAfter is the time after which serve reads an unused connection again.
	reclaimAfter = 10 * time.Millisecond
	// pollAfter is how long an unused connection is assumed to be open without a check.
	pollAfter = time.Millisecond
	// readerReplies is how many replies to lone calls serve reads after several calls were outstanding.
	readerReplies = 8
)

// ownReply is the reply that a caller is reading.
type ownReply struct {
	w     *waiter // nil if serve reads
	ctx   context.Context
	until time.Time // its deadline; set when it stalls
	over  bool      // the caller has given up
}

// handedOver is what a caller passes to serve with the read token.
type handedOver struct {
	ahead bool        // a header was read
	h     wire.Header // of another call's reply
	err   error       // why the connection has ended
}

// assignReader gives the unused read token to w, the only call, or to serve. Called with mu.
func (c *clientConn) assignReader(w *waiter) {
	if !c.tokenFree {
		return
	}
	c.tokenFree = false
	if w.hasReadToken = w.left() > ctxPoll; !w.hasReadToken {
		c.readToken <- struct{}{}
	}
}

// peerClosed reports whether the peer has closed an unused connection, on which a call would be lost.
func (c *clientConn) peerClosed() bool {
	c.mu.Lock()
	look := c.tokenFree && time.Since(c.lastReply) > pollAfter
	c.mu.Unlock()
	return look && c.poll()
}

// wakeReader gives the read token to serve if it is unused.
func (c *clientConn) wakeReader() {
	c.mu.Lock()
	free := c.tokenFree
	c.tokenFree = false
	c.mu.Unlock()
	if free {
		c.readToken <- struct{}{}
	}
}

// passToken passes the read token of w to serve.
func (c *clientConn) passToken(w *waiter) {
	w.hasReadToken = false
	c.readToken <- struct{}{}
}

// readOwn reads the reply to w, which holds the read token. If ended is false, the caller must wait for w.
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

// releaseToken releases the read token of w; if other calls are outstanding, serve gets it.
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

// stalled is called when a reply makes no progress. A caller continues to read its own reply until the frame times out,
// or for grace after it gave up. Called with the read token.
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

// awaitToken waits until serve has the read token again, and completes the reply that was handed over.
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

// canPoll reports whether a poll can tell that the peer has closed the connection. If not, serve always holds the read
// token.
func (c *clientConn) canPoll() bool { return c.poll != nil }

// idleToken releases serve's read token if no call is outstanding and the latest calls were alone.
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

// takeToken waits until serve has the read token again; it returns false if serve reclaimed it unused.
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

// reclaimToken takes the read token of an unused connection for serve.
func (c *clientConn) reclaimToken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.tokenFree || time.Since(c.lastReply) < reclaimAfter {
		return false
	}
	c.tokenFree = false
	return true
}
