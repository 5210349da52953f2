package rpc

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

// frameReader reads frames under two deadlines: one for the silence between frames, one from the
// start of a frame to its end.
type frameReader struct {
	conn     net.Conn
	br       *bufio.Reader
	idle     time.Duration
	frame    time.Duration
	deadline time.Time // the deadline that is set
	bytes    *atomic.Int64
	// stalled, if set, is called when a deadline passes within a frame after its header, and
	// reports whether it has set another one.
	stalled func() bool
}

func newFrameReader(conn net.Conn, size int, idle, frame time.Duration, bytes *atomic.Int64) frameReader {
	return frameReader{conn: conn, br: bufio.NewReaderSize(conn, size), idle: idle, frame: frame, bytes: bytes}
}

// arm sets the deadline to d from now. It keeps one that is up to a quarter too early, because
// setting a deadline costs as much as parsing a frame.
func (r *frameReader) arm(d time.Duration) {
	now := time.Now()
	if left := r.deadline.Sub(now); left <= d && left > d-d/4 {
		return
	}
	r.deadline = now.Add(d)
	_ = r.conn.SetReadDeadline(r.deadline) // the next read of a dead connection fails
}

// next reads a header and sets the deadline for the rest of the frame. It may be called again after errIdle, which
// means that no byte of a frame has arrived.
func (r *frameReader) next(h *wire.Header) error {
	if r.br.Buffered() == 0 {
		r.arm(r.idle)
		if _, err := r.br.Peek(1); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				r.deadline = time.Time{}
				return errIdle
			}
			return err
		}
	}
	r.expect(wire.HeaderSize)
	b, err := r.br.Peek(wire.HeaderSize)
	if err != nil {
		return broken(err)
	}
	if err := h.Parse(b); err != nil {
		return err
	}
	_, _ = r.br.Discard(wire.HeaderSize) // it was peeked
	n := int(h.Body + h.Data)
	r.expect(n)
	r.bytes.Add(int64(wire.HeaderSize + n))
	return nil
}

// nextWithin reads a header that arrives within d. After errIdle, next may be called. It sets no deadline for the rest
// of the frame.
func (r *frameReader) nextWithin(h *wire.Header, d time.Duration) error {
	if r.br.Buffered() < wire.HeaderSize {
		r.arm(d)
	}
	b, err := r.br.Peek(wire.HeaderSize)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		r.deadline = time.Time{}
		return errIdle
	case err != nil && r.br.Buffered() == 0:
		return err
	case err != nil:
		return broken(err)
	}
	if err := h.Parse(b); err != nil {
		return err
	}
	_, _ = r.br.Discard(wire.HeaderSize) // it was peeked
	r.bytes.Add(int64(wire.HeaderSize) + int64(h.Body) + int64(h.Data))
	return nil
}

// resume reports whether to continue after err within a frame.
func (r *frameReader) resume(err error) bool {
	return r.stalled != nil && errors.Is(err, os.ErrDeadlineExceeded) && r.stalled()
}

// expect sets the frame's deadline if fewer than n bytes are buffered.
func (r *frameReader) expect(n int) {
	if r.br.Buffered() < n {
		r.arm(r.frame)
	}
}

func (r *frameReader) full(p []byte) error {
	for {
		n, err := io.ReadFull(r.br, p)
		if err == nil || !r.resume(err) {
			return broken(err)
		}
		p = p[n:]
	}
}

// body reads all of p, the body of the frame.
func (r *frameReader) body(h *wire.Header, p []byte) error {
	if err := r.full(p); err != nil {
		return err
	}
	return h.CheckBody(p)
}

func (r *frameReader) discard(n int) error {
	_, err := r.br.Discard(n)
	return broken(err)
}

// broken translates the error of a read within a frame.
func broken(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errSlow
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return err
}

// joinedBody is the largest body that is appended to its header, so that both take one write.
const joinedBody = 16 << 10

// frameWriter writes frames, one at a time. A writer holds the token, which is a channel so that waiting for it can be
// cancelled.
type frameWriter struct {
	conn    net.Conn
	raw     syscall.RawConn // of a TCP connection without protection, for sendfile; else nil
	timeout time.Duration
	bytes   *atomic.Int64

	token    chan struct{} // buffered by one: the goroutine that put the token in may write
	deadline time.Time     // held by token: the deadline that is set
	buf      []byte        // held by token
	vec      [][]byte      // held by token
	// State of try; held by token.
	sendNow func(fd uintptr) bool // sendmsg
	trying  []byte
	taken   int
	failed  error

	mu        sync.Mutex
	frame     uint64 // guarded by mu: which frame is being written
	shortened bool   // guarded by mu: shorten has set another deadline for it
}

func newFrameWriter(conn net.Conn, timeout time.Duration, bytes *atomic.Int64) *frameWriter {
	w := &frameWriter{conn: conn, timeout: timeout, bytes: bytes, token: make(chan struct{}, 1)}
	if tcp, ok := conn.(*net.TCPConn); ok {
		w.raw, _ = tcp.SyscallConn() // without it files are copied
		w.sendNow = w.sendmsg
	}
	return w
}

func (w *frameWriter) lock() { w.token <- struct{}{} }

func (w *frameWriter) unlock() {
	w.mu.Lock()
	w.frame++
	if w.shortened {
		w.shortened, w.deadline = false, time.Time{}
	}
	w.mu.Unlock()
	<-w.token
}

// arm sets the write deadline to at most d from now, and at most the timeout.
func (w *frameWriter) arm(d time.Duration) {
	d = min(d, w.timeout)
	now := time.Now()
	if left := w.deadline.Sub(now); left <= d && left > d-d/4 {
		return
	}
	w.deadline = now.Add(d)
	_ = w.conn.SetWriteDeadline(w.deadline) // the next write to a dead connection fails
}

// shorten returns a function that leaves the current frame at most d more time; it does nothing once that frame is
// written. Held by token.
func (w *frameWriter) shorten(d time.Duration) func() {
	w.mu.Lock()
	frame := w.frame
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.frame == frame {
			w.shortened = true
			_ = w.conn.SetWriteDeadline(time.Now().Add(d))
		}
	}
}

// send writes a whole frame and sets the lengths in h. Held by token.
func (w *frameWriter) send(h wire.Header, body []byte, data ...[]byte) error {
	rest, err := w.begin(h, body, data...)
	if err != nil || len(rest) == 0 {
		return err
	}
	return w.finish(rest)
}

// begin is the part of send that does not block: it writes as much of a small frame as the socket
// takes at once. finish writes the rest.
func (w *frameWriter) begin(h wire.Header, body []byte, data ...[]byte) (rest net.Buffers, err error) {
	h.Body, h.Sum = uint32(len(body)), wire.Sum(body)
	for _, p := range data {
		h.Data += uint32(len(p))
	}
	w.buf = h.Append(w.buf[:0])
	if len(body) <= joinedBody {
		w.buf, body = append(w.buf, body...), nil
	}
	n := wire.HeaderSize + int(h.Body+h.Data)
	w.bytes.Add(int64(n))
	w.vec = append(w.vec[:0], w.buf)
	if n == len(w.buf) {
		k, err := w.try(w.buf)
		if k == n || err != nil {
			return nil, err
		}
		w.vec[0] = w.buf[k:]
		return w.vec, nil
	}
	if len(body) > 0 {
		w.vec = append(w.vec, body)
	}
	w.vec = append(w.vec, data...)
	return w.vec, nil
}

// finish writes the rest of a frame after begin.
func (w *frameWriter) finish(rest net.Buffers) (err error) {
	if c, ok := w.conn.(secure.Buffers); ok {
		_, err = c.WriteBuffers(rest)
	} else {
		_, err = rest.WriteTo(w.conn)
	}
	clear(w.vec) // keep no memory of callers
	return err
}

// try writes as much of p as a TCP socket takes without blocking. The RawConn callback is made once: a capturing
// closure would cost five allocations.
func (w *frameWriter) try(p []byte) (n int, err error) {
	if w.raw == nil {
		return 0, nil
	}
	w.trying, w.taken, w.failed = p, 0, nil
	err = w.raw.Write(w.sendNow)
	w.trying = nil
	return w.taken, cmp.Or(w.failed, err)
}

// sendmsg is the part of try with the descriptor.
func (w *frameWriter) sendmsg(fd uintptr) bool {
	for {
		n, err := unix.SendmsgN(int(fd), w.trying, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch err {
		case nil:
			w.taken = n
		case unix.EINTR:
			continue
		case unix.EAGAIN:
		default:
			w.failed = os.NewSyscallError("write", err)
		}
		return true
	}
}
