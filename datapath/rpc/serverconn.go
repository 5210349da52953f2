package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/valyala/bytebufferpool"
	"golang.org/x/sync/semaphore"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// serverConn is one authenticated connection for requests.
type serverConn struct {
	s       *Server
	conn    net.Conn
	peer    metadata.NodeID
	workers *workers
	r       frameReader
	w       *frameWriter
	slots   chan struct{}       // a token for each request under way
	room    *semaphore.Weighted // memory limit of a bulk connection; nil on others
	newest  metadata.Epoch
	replies replyCache
	ctx     context.Context // ends with the connection
	cancel  context.CancelFunc
	wg      sync.WaitGroup // requests under way
	ended   chan struct{}  // closed when no request runs any more, nor will
}

// serverReadBuffer holds about a hundred small requests.
const serverReadBuffer = 16 << 10

// serveFrames answers requests until the connection breaks, and returns why, after all handlers
// have returned.
func (s *Server) serveFrames(conn net.Conn, hello wire.Hello) error {
	ctx, cancel := context.WithCancel(s.ctx)
	c := &serverConn{
		s: s, conn: conn, peer: hello.From, workers: s.meta, ctx: ctx, cancel: cancel, ended: make(chan struct{}),
		r:     newFrameReader(conn, serverReadBuffer, s.cfg.IdleTimeout, s.cfg.FrameTimeout, &s.stats.bytesIn),
		w:     newFrameWriter(conn, s.cfg.FrameTimeout, &s.stats.bytesOut),
		slots: make(chan struct{}, s.cfg.MaxInFlight), replies: replyCache{peer: hello.From},
	}
	switch hello.Purpose {
	case wire.PurposeBulk:
		c.workers = s.bulk
		c.room = semaphore.NewWeighted(min(connMemory, s.cfg.Memory))
	case wire.PurposePeer:
		c.workers = s.homes
	case wire.PurposeMirror:
		c.workers = s.mirror
	}
	if !s.register(hello.Nonce, c) {
		cancel()
		_ = conn.Close()
		return errDrained
	}
	err := c.readRequests()
	c.cut()
	c.wg.Wait()
	s.unregister(hello.Nonce, c)
	return err
}

// cut closes the connection and cancels its requests.
func (c *serverConn) cut() {
	c.cancel()
	_ = c.conn.Close()
}

func (c *serverConn) readRequests() error {
	for {
		var h wire.Header
		if err := c.r.next(&h); err != nil {
			return err
		}
		if h.Status != 0 {
			return errNotAsked
		}
		if h.Epoch > c.newest {
			c.newest = h.Epoch
			if h.Epoch > c.s.cfg.Epoch() {
				c.s.cfg.NewerEpoch(c.peer, h.Epoch)
			}
		}
		if h.Op == wire.OpDrain {
			if err := c.drain(h); err != nil {
				return err
			}
			continue
		}
		if h.Op == wire.OpCachedReply {
			if err := c.cachedReply(h); err != nil {
				return err
			}
			continue
		}
		select {
		case c.slots <- struct{}{}:
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
		if err := c.dispatch(h); err != nil {
			return err
		}
	}
}

// dispatch reads the rest of a request and runs its handler.
func (c *serverConn) dispatch(h wire.Header) error {
	if h.Op >= wire.MaxOp || c.s.handlers[h.Op] == nil {
		err := c.r.discard(int(h.Body + h.Data))
		if err == nil {
			err = c.refuse(h)
		}
		<-c.slots
		return err
	}
	t, err := newTask(c, h)
	if err != nil {
		<-c.slots
		return err
	}
	c.r.expect(int(h.Body + h.Data)) // again, after a wait for memory
	err = c.r.full(t.buf.b[:h.Body+h.Data])
	if err == nil {
		err = h.CheckBody(t.req.Body)
	}
	if err != nil {
		t.release()
		<-c.slots
		return err
	}
	c.s.stats.requests[h.Op].Add(1)
	c.s.stats.inFlight.Add(1)
	c.wg.Add(1)
	if t.inline = c.inline(h.Op); t.inline {
		t.run()
		return nil
	}
	if !c.workers.run(t) {
		t.end()
		return c.ctx.Err()
	}
	return nil
}

// inline reports whether the reader goroutine answers op, its last request, itself.
func (c *serverConn) inline(op wire.Op) bool {
	return c.s.inline[op] || c.s.inlineWhenIdle[op] && len(c.slots) == 1 && c.r.br.Buffered() == 0
}

// refuse answers a request for an op that has no handler here.
func (c *serverConn) refuse(h wire.Header) error {
	c.s.cfg.Log.WithFields(logrus.Fields{"peer": c.peer, "op": h.Op.String()}).Warn("request refused: no handler for this op")
	return c.answer(h, syscall.EBADRQC, nil)
}

// readSmall reads a request that this package answers itself, of at most limit bytes.
func (c *serverConn) readSmall(h wire.Header, limit uint32, m wire.Message) error {
	if h.Data > 0 || h.Body > limit {
		return fmt.Errorf("%v of %d bytes: %w", h.Op, h.Body+h.Data, wire.ErrTooLarge)
	}
	body, err := readBody(&c.r, &h)
	if err != nil {
		return err
	}
	defer bodies.Put(body)
	return wire.Parse(body.B, m)
}

// answer sends a reply that this package makes itself.
func (c *serverConn) answer(h wire.Header, status syscall.Errno, m wire.Message) error {
	body, err := encode(m)
	if err != nil {
		return err
	}
	defer bodies.Put(body)
	c.w.lock()
	defer c.w.unlock()
	c.w.arm(c.s.cfg.FrameTimeout)
	return c.w.send(wire.Header{Op: h.Op, Tag: h.Tag, Status: status, Epoch: c.s.cfg.Epoch()}, body.B)
}

// task is one request in progress.
type task struct {
	c    *serverConn
	h    wire.Header
	buf  *buffer                    // holds req
	out  *buffer                    // holds resp.Data if Alloc was called, else nil
	body *bytebufferpool.ByteBuffer // resp.Body; nil until the handler has returned
	req  Request
	resp Response
	// inline is set while the reader goroutine runs the task. A task that would block moves to a worker.
	inline bool
}

var tasks = sync.Pool{New: func() any { return new(task) }}

// newTask waits for memory for the rest of the request.
func newTask(c *serverConn, h wire.Header) (*task, error) {
	n := int(h.Body + h.Data)
	buf, err := c.s.memory.get(c.ctx, n, c.room)
	if err != nil {
		return nil, err
	}
	t := tasks.Get().(*task)
	t.c, t.h, t.buf = c, h, buf
	t.req = Request{Op: h.Op, Peer: c.peer, Epoch: h.Epoch, Body: buf.b[:h.Body:h.Body], Data: buf.b[h.Body:n:n]}
	t.resp.task = t
	return t, nil
}

func (t *task) release() {
	t.buf.put()
	t.drop()
	*t = task{}
	tasks.Put(t)
}

// drop releases the resources of a reply.
func (t *task) drop() {
	if t.resp.Done != nil {
		t.resp.Done()
	}
	if t.out != nil {
		t.out.put()
	}
	if t.body != nil {
		bodies.Put(t.body)
	}
	t.out, t.body, t.resp = nil, nil, Response{task: t}
}

// alloc implements Response.Alloc.
func (t *task) alloc(ctx context.Context, n int) ([]byte, error) {
	if t.out != nil || n < 0 || n > wire.MaxFrame {
		return nil, fmt.Errorf("memory for a response of %d bytes: %w", n, syscall.EINVAL)
	}
	var err error
	if t.out, err = t.c.s.memory.get(ctx, n, t.c.room); err != nil {
		return nil, err
	}
	return t.out.b[:n], nil
}

// end releases a request and removes it from the counts.
func (t *task) end() {
	c := t.c
	t.release()
	c.s.stats.inFlight.Add(-1)
	<-c.slots
	c.wg.Done()
}

// run calls the handler and sends its reply.
func (t *task) run() {
	ctx, cancel := t.context()
	err := t.handle(ctx)
	if body, eerr := encode(t.resp.Body); eerr == nil {
		t.body = body
	} else if err == nil {
		err = fmt.Errorf("%v: %v: %w", t.h.Op, eerr, syscall.EIO)
	}
	if err == nil {
		err = t.settle(ctx)
	}
	cancel()
	if t.inline && errors.Is(err, context.Canceled) {
		t.requeue()
		return
	}
	if err := t.reply(err); err != nil {
		_ = t.c.conn.Close() // part of a frame may have been sent, so no other can follow
		t.c.s.cfg.Log.WithFields(logrus.Fields{"peer": t.c.peer, "op": t.h.Op.String()}).WithError(err).
			Debug("reply not sent, connection closed")
	}
	t.end()
}

// requeue gives t to a worker, which may block.
func (t *task) requeue() {
	t.drop()
	t.inline = false
	if !t.c.workers.run(t) {
		t.end()
	}
}

func (t *task) context() (context.Context, context.CancelFunc) {
	ctx := t.c.ctx
	if t.h.Op.ReplyCached() {
		ctx = t.c.s.ctx // it continues; the peer asks the reply cache after reconnecting
	}
	switch {
	case t.inline:
		return t.c.s.endedCtx, func() {}
	case t.h.Wait == 0:
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Duration(t.h.Wait)*time.Millisecond)
}

// handle calls the handler; a panic becomes an error without an errno.
func (t *task) handle(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			t.c.s.stats.panics.Add(1)
			t.c.s.cfg.Log.WithFields(logrus.Fields{"op": t.h.Op.String(), "panic": fmt.Sprint(p), "stack": string(debug.Stack())}).Error("internal error in a request: please report the stack")
			err = syscall.EIO
		}
	}()
	return t.c.s.handlers[t.h.Op](ctx, &t.req, &t.resp)
}

// reply sends the handler's result.
func (t *task) reply(err error) error {
	c, resp := t.c, &t.resp
	status, ok := StatusOf(err)
	if !ok {
		c.s.cfg.Log.WithFields(logrus.Fields{"peer": c.peer, "op": t.h.Op.String()}).WithError(err).
			Warn("handler error without an errno, sent as EIO")
	}
	var body []byte
	if t.body != nil && len(t.body.B) <= wire.MaxFrame {
		body = t.body.B
	}
	h := wire.Header{Op: t.h.Op, Tag: t.h.Tag, Status: status, Epoch: c.s.cfg.Epoch()}
	c.w.lock()
	defer c.w.unlock()
	if t.h.Op.ReplyCached() {
		c.replies.add(t.h.Tag, status, body)
	}
	c.w.arm(c.s.cfg.FrameTimeout)
	switch {
	case status != 0:
		c.s.stats.errors[t.h.Op].Add(1)
		err = c.w.send(h, body)
	case resp.File != nil:
		c.s.stats.fileOut.Add(resp.Len)
		err = c.w.sendParts(h, body, Part{File: resp.File, Off: resp.Off, Len: resp.Len})
	case len(resp.Parts) > 0:
		for i := range resp.Parts {
			c.s.stats.fileOut.Add(resp.Parts[i].Len)
		}
		err = c.w.sendParts(h, body, resp.Parts...)
	case len(resp.Data) > 0:
		err = c.w.send(h, body, resp.Data)
	default:
		err = c.w.send(h, body)
	}
	if isTimeout(err) {
		c.s.stats.reject(errSlow)
	}
	return err
}

// settle checks that the response fits in a frame, and clips a file's range to its size. Without
// sendfile it reads the range.
func (t *task) settle(ctx context.Context) error {
	resp := &t.resp
	if len(resp.Parts) > 0 {
		return t.settleParts(ctx)
	}
	if resp.File == nil {
		resp.Len = 0
	} else {
		if resp.Data != nil || resp.Off < 0 || resp.Len < 0 || resp.Len > wire.MaxData {
			return fmt.Errorf("response of %d bytes from %d of a file, %d in memory", resp.Len, resp.Off, len(resp.Data))
		}
		var err error
		if resp.Len, err = Clamp(resp.File, resp.Off, resp.Len); err != nil {
			return err
		}
		if t.c.w.raw == nil {
			if err := t.readFile(ctx); err != nil {
				return err
			}
		}
	}
	if len(resp.Data) > wire.MaxData || len(t.body.B)+len(resp.Data)+int(resp.Len) > wire.MaxFrame {
		return fmt.Errorf("response of %d and %d bytes is too large", len(t.body.B), len(resp.Data))
	}
	return nil
}

// settleParts is settle for a response made of parts.
func (t *task) settleParts(ctx context.Context) error {
	resp, n := &t.resp, int64(0)
	for i := range resp.Parts {
		n += resp.Parts[i].size()
	}
	if resp.Data != nil || resp.File != nil || n > wire.MaxMany || int64(len(t.body.B))+n > wire.MaxFrame {
		return fmt.Errorf("response of %d and %d bytes in parts is too large", len(t.body.B), n)
	}
	if t.c.w.raw == nil {
		return t.readParts(ctx, n)
	}
	return nil
}

func isTimeout(err error) bool {
	if err == nil {
		return false
	}
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
