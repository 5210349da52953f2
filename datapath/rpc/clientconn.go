package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// clientConn is one connection with many outstanding calls. Callers write their requests
// themselves. The holder of the read token reads replies and completes calls: the reader goroutine
// (serve), or a caller (readtoken.go).
type clientConn struct {
	pool     *connPool
	conn     net.Conn
	nonce    wire.Nonce  // sent in its Hello
	poll     func() bool // reports whether the peer has closed it; nil if that cannot be seen
	r        frameReader
	w        *frameWriter
	inFlight chan struct{} // a token for each outstanding call, abandoned ones included
	gone     chan struct{} // closed when the connection has ended

	newest    metadata.Epoch // guarded by the read token
	answered  bool           // guarded by the read token
	skipPipe  int            // guarded by the read token: how many more replies skip the pipe
	own       ownReply       // guarded by the read token
	handover  handedOver     // guarded by the read token
	readToken chan struct{}  // passes the read token to serve; buffered, so that passing never blocks

	mu             sync.Mutex
	pending        map[uint32]*waiter // guarded by mu: by tag; nil if the caller gave up
	tag            uint32             // guarded by mu: the last one used
	dead           error              // guarded by mu: why no call can start
	lastReply      time.Time          // guarded by mu: when the last reply arrived, or the first outstanding call began
	tokenFree      bool               // guarded by mu: the read token is unused
	pendingReplies int                // guarded by mu: replies that serve reads before it releases the token
}

// Bulk connections have a small read buffer, because bytes that pass through it are copied once more.
const (
	metaReadBuffer = 16 << 10
	bulkReadBuffer = wire.HeaderSize
)

// grace is the time in which a frame in progress may complete after its caller gave up. Without it every signal to a
// reading process would break the connection for all calls.
const grace = 500 * time.Millisecond

func newClientConn(l *connPool, conn net.Conn, nonce wire.Nonce) *clientConn {
	cfg := &l.p.cfg
	size := metaReadBuffer
	if l.purpose == wire.PurposeBulk {
		size = bulkReadBuffer
	}
	c := &clientConn{
		pool:      l,
		conn:      conn,
		nonce:     nonce,
		poll:      secure.Poll(conn),
		r:         newFrameReader(conn, size, cfg.IdleTimeout, cfg.FrameTimeout, &l.p.stats.bytesIn),
		w:         newFrameWriter(conn, cfg.FrameTimeout, &l.p.stats.bytesOut),
		inFlight:  make(chan struct{}, cfg.MaxInFlight),
		gone:      make(chan struct{}),
		readToken: make(chan struct{}, 1),
		pending:   make(map[uint32]*waiter),
	}
	c.r.stalled = c.stalled
	c.tokenFree = c.canPoll()
	return c
}

// do executes w's call. errUnsent means that no byte of it was sent.
func (c *clientConn) do(ctx context.Context, w *waiter) error {
	select {
	case c.inFlight <- struct{}{}:
	default:
		if err := c.waitFor(ctx, w, c.inFlight); err != nil {
			return err
		}
	}
	tag, err := c.request(ctx, w)
	if err != nil {
		return err
	}
	switch {
	case w.hasReadToken:
		if ended, err := c.readOwn(ctx, w, tag); ended {
			return err
		}
	case w.pollOnce():
		return w.err
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return c.abandon(w, tag, ctxErrno(ctx))
	case <-w.timer.C:
		return c.abandon(w, tag, syscall.ETIMEDOUT)
	}
}

// waitFor waits until room, which is full, accepts a token.
func (c *clientConn) waitFor(ctx context.Context, w *waiter, room chan<- struct{}) error {
	select {
	case room <- struct{}{}:
		return nil
	case <-c.gone:
		return errUnsent
	case <-ctx.Done():
		return ctxErrno(ctx)
	case <-w.timer.C:
		c.disconnectIfSilent()
		return syscall.ETIMEDOUT
	}
}

// register assigns w a tag. From then on the holder of the read token, possibly w itself, completes w. The caller holds
// the write token, so that every registered tag is about to be sent.
func (c *clientConn) register(w *waiter) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead != nil {
		return 0, errUnsent
	}
	for taken := true; taken; {
		c.tag++
		_, taken = c.pending[c.tag]
	}
	if len(c.pending) == 0 {
		c.lastReply = time.Now()
		c.assignReader(w)
	} else {
		c.pendingReplies = readerReplies
	}
	c.pending[c.tag] = w
	return c.tag, nil
}

// request sends the call's frame. It holds a token in inFlight, and returns it if nothing was sent.
func (c *clientConn) request(ctx context.Context, w *waiter) (uint32, error) {
	select {
	case c.w.token <- struct{}{}:
	default:
		if err := c.waitFor(ctx, w, c.w.token); err != nil {
			<-c.inFlight
			return 0, err
		}
	}
	if c.peerClosed() {
		c.wakeReader()
		c.w.unlock()
		<-c.inFlight
		<-c.gone
		return 0, errUnsent
	}
	tag, err := c.register(w)
	if err != nil {
		c.w.unlock()
		<-c.inFlight
		<-c.gone // so that the next try gets another connection
		return 0, err
	}
	err = c.write(ctx, w, tag)
	c.w.unlock()
	if err == nil {
		return tag, nil
	}
	// Part of the frame may have been sent, so no other frame can follow.
	c.cut(fmt.Errorf("write: %w", err))
	if w.hasReadToken {
		c.passToken(w)
	}
	<-w.done
	if ctx.Err() != nil {
		return 0, ctxErrno(ctx)
	}
	if w.left() <= 0 {
		return 0, syscall.ETIMEDOUT
	}
	return 0, w.err
}

// write writes the frame. Called with the write token.
func (c *clientConn) write(ctx context.Context, w *waiter, tag uint32) error {
	c.w.arm(max(w.left(), 0) + grace)
	h := wire.Header{Op: w.call.Op, Tag: tag, Epoch: c.pool.p.cfg.Epoch(), Wait: w.wait()}
	rest, err := c.w.begin(h, w.body, w.call.Data...)
	if err != nil || len(rest) == 0 {
		return err
	}
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, c.w.shorten(grace))()
	}
	return c.w.finish(rest)
}

// abandon gives a call up. It returns when nothing uses the Call any more. If the reply has already arrived, that is
// the result.
func (c *clientConn) abandon(w *waiter, tag uint32, errno syscall.Errno) error {
	c.mu.Lock()
	_, ok := c.pending[tag]
	if ok && !w.receiving {
		c.pending[tag] = nil
		c.mu.Unlock()
		if errno == syscall.ETIMEDOUT {
			c.disconnectIfSilent()
		}
		return errno
	}
	c.mu.Unlock()
	if ok {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-w.done:
			return w.err
		case <-t.C:
			c.cut(errSlow)
			<-w.done
			return errno
		}
	}
	<-w.done
	return w.err
}

// disconnectIfSilent closes the connection if no reply has arrived for three quarters of the call timeout: the peer or
// the network is probably down, which the handshake of the next call will detect.
func (c *clientConn) disconnectIfSilent() {
	limit := c.pool.p.cfg.Timeout
	c.mu.Lock()
	silent := len(c.pending) > 0 && time.Since(c.lastReply) > limit-limit/4
	c.mu.Unlock()
	if silent {
		c.cut(errSilent)
	}
}

// cut closes the connection; serve cleans up.
func (c *clientConn) cut(err error) {
	c.mu.Lock()
	if c.dead == nil {
		c.dead = err
	}
	c.mu.Unlock()
	_ = c.conn.Close()
	c.wakeReader()
}

// serve reads replies while no caller does, until the connection ends; then it fails all outstanding calls.
func (c *clientConn) serve() {
	err := c.readReplies()
	c.cut(err)
	c.mu.Lock()
	err = c.dead
	pending := c.pending
	c.pending = nil
	c.mu.Unlock()
	c.pool.drop(c, err, c.answered, len(pending) > 0)
	close(c.gone)
	for tag, w := range pending {
		if w != nil {
			why := fmt.Errorf("connection to %v: %w", c.conn.RemoteAddr(), err)
			w.err = &connectError{syscall.ECONNRESET, &lostCall{c.pool.id, c.nonce, tag, why}}
			w.done <- struct{}{}
		}
	}
	if !errors.Is(err, errIdle) && !errors.Is(err, errClosed) {
		c.pool.p.cfg.Log.WithField("peer", c.pool.id).WithError(err).Debug("connection ended")
	}
}

func (c *clientConn) readReplies() error {
	for rests := c.canPoll(); ; rests = c.idleToken() {
		if rests {
			if err := c.awaitToken(); err != nil {
				return err
			}
		}
		var h wire.Header
		err := c.r.next(&h)
		if err == errIdle {
			if c.closeIfIdle() {
				return errIdle
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := c.receive(h); err != nil {
			return err
		}
	}
}

// closeIfIdle marks an idle connection as dead, unless a call is outstanding.
func (c *clientConn) closeIfIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) > 0 {
		return false
	}
	if c.dead == nil {
		c.dead = errIdle
	}
	return true
}

// receive reads the rest of a reply into its call, and completes the call.
func (c *clientConn) receive(h wire.Header) error {
	w, err := c.find(h.Tag)
	if err != nil {
		return err
	}
	if !c.answered {
		c.answered = true
		c.pool.answered()
	}
	if h.Epoch > c.newest {
		c.newest = h.Epoch
		if h.Epoch > c.pool.p.cfg.Epoch() {
			c.pool.p.cfg.NewerEpoch(c.pool.id, h.Epoch)
		}
	}
	if w == nil {
		err = c.r.discard(int(h.Body + h.Data))
	} else {
		err = c.fill(w, h)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	delete(c.pending, h.Tag)
	c.mu.Unlock()
	<-c.inFlight
	if w != nil {
		w.done <- struct{}{}
	}
	return nil
}

// find returns the call of a tag; nil if its caller gave up.
func (c *clientConn) find(tag uint32) (*waiter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.pending[tag]
	if !ok {
		return nil, errTag
	}
	c.lastReply = time.Now()
	if w != nil {
		w.receiving = true
	}
	return w, nil
}

// fill reads body and data into the call.
func (c *clientConn) fill(w *waiter, h wire.Header) error {
	call := w.call
	if h.Op != call.Op {
		return errTag
	}
	if int(h.Data) > len(call.Into) {
		return errTooMuch
	}
	body, err := readBody(&c.r, &h)
	if err != nil {
		return err
	}
	if n := int(h.Data); c.mayPipe(call, n) {
		err = c.toPipe(call, n)
	} else {
		err = c.r.full(call.Into[:n])
	}
	if err != nil {
		bodies.Put(body)
		return err
	}
	w.reply, call.N = body, int(h.Data)
	w.err = nil
	if h.Status != 0 {
		w.err = h.Status
	}
	return nil
}
