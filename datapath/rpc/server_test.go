package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// frame returns h followed by body and data.
func frame(h wire.Header, body, data string) []byte {
	h.Body, h.Data, h.Sum = uint32(len(body)), uint32(len(data)), wire.Sum([]byte(body))
	return append(h.Append(nil), body+data...)
}

// damaged returns a frame with its last byte changed.
func damaged(frame []byte) []byte {
	frame[len(frame)-1] ^= 0x10
	return frame
}

// lookup returns the frame of a request.
func lookup(tag uint32) []byte {
	return frame(wire.Header{Op: wire.OpLookup, Tag: tag}, "body", "")
}

// readReply reads one frame.
func readReply(t *testing.T, conn net.Conn) (wire.Header, []byte) {
	t.Helper()
	var b [wire.HeaderSize]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		t.Fatal(err)
	}
	var h wire.Header
	if err := h.Parse(b[:]); err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, h.Body+h.Data)
	if _, err := io.ReadFull(conn, rest); err != nil {
		t.Fatal(err)
	}
	return h, rest
}

func TestOversizedFrameIsCut(t *testing.T) {
	s, addr := startServer(t, echoes, nil)
	conn := dialShaken(t, addr, wire.PurposeMeta)
	if _, err := conn.Write(wire.Header{Op: wire.OpLookup, Body: wire.MaxFrame + 1}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	wantCut(t, conn)
	eventually(t, "count of oversized frames", func() bool { return s.Stats().Rejected["oversize"] == 1 })
}

func TestDamagedFrameIsCut(t *testing.T) {
	s, addr := startServer(t, echoes, nil)
	for i, frame := range [][]byte{
		bytes.Repeat([]byte{0}, wire.HeaderSize),
		wire.Header{Op: wire.OpLookup, Status: syscall.EIO}.Append(nil),
		damaged(lookup(1)),
		damaged(frame(wire.Header{Op: wire.OpDrain, Tag: 1}, string(wire.Append(nil, &wire.DrainReq{Conns: []wire.Nonce{{}}})), "")),
		damaged(frame(wire.Header{Op: wire.OpCachedReply, Tag: 1}, string(wire.Append(nil, &wire.CachedReplyReq{Tag: 1})), "")),
	} {
		conn := dialShaken(t, addr, wire.PurposeMeta)
		_, _ = conn.Write(frame)
		wantCut(t, conn)
		eventually(t, "count of damaged frames", func() bool { return s.Stats().Rejected["malformed"] == int64(i+1) })
	}
}

// A started frame must complete in time; between frames there is no time limit.
func TestSlowFrameIsCut(t *testing.T) {
	s, addr := startServer(t, echoes, func(c *ServerConfig) { c.FrameTimeout = 50 * time.Millisecond })
	for i, n := range []int{1, wire.HeaderSize - 1, wire.HeaderSize, wire.HeaderSize + 3} {
		conn := dialShaken(t, addr, wire.PurposeMeta)
		_, _ = conn.Write(append(lookup(1), lookup(2)[:n]...))
		if h, _ := readReply(t, conn); h.Tag != 1 {
			t.Fatalf("reply to %d, want 1", h.Tag)
		}
		wantCut(t, conn)
		eventually(t, "count of slow peers", func() bool { return s.Stats().Rejected["slow"] == int64(i+1) })
	}
}

// A peer that sends requests and does not read the replies is disconnected.
func TestPeerThatDoesNotReadIsCut(t *testing.T) {
	big := make([]byte, wire.MaxData)
	handlers := map[wire.Op]Handler{wire.OpRead: func(_ context.Context, _ *Request, resp *Response) error {
		resp.Data = big
		return nil
	}}
	s, addr := startServer(t, handlers, func(c *ServerConfig) { c.FrameTimeout = 100 * time.Millisecond })
	conn := dialShaken(t, addr, wire.PurposeBulk)
	for tag := range uint32(40) {
		_, _ = conn.Write(wire.Header{Op: wire.OpRead, Tag: tag}.Append(nil))
	}
	eventually(t, "the cut", func() bool { return s.Stats().Rejected["slow"] >= 1 && s.Stats().Conns == 0 })
}

func TestIdleConnectionIsClosed(t *testing.T) {
	s, addr := startServer(t, echoes, func(c *ServerConfig) { c.IdleTimeout = 50 * time.Millisecond })
	wantCut(t, dialShaken(t, addr, wire.PurposeMeta))
	eventually(t, "the end", func() bool { return s.Stats().Conns == 0 })
	if r := s.Stats().Rejected; r.sum() != 0 {
		t.Errorf("rejected %+v, want nothing: to be idle is no offence", r)
	}
}

func TestUnknownOp(t *testing.T) {
	_, addr := startServer(t, echoes, nil)
	p := startPeers(t, addr, nil)
	for _, op := range []wire.Op{wire.OpGetattr, 1000, 0xffff} {
		err := p.To(3).Do(context.Background(), &Call{Op: op, Body: raw("x"), Data: [][]byte{{1}}})
		wantErrno(t, err, syscall.EBADRQC)
	}
	if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}); err != nil {
		t.Fatalf("the connection did not survive: %v", err)
	}
}

func TestHandlerErrors(t *testing.T) {
	for _, c := range []struct {
		what string
		err  error
		want syscall.Errno
	}{
		{"errno", fmt.Errorf("place: %w", syscall.EEXIST), syscall.EEXIST},
		{"path error", &os.PathError{Op: "open", Err: syscall.ENOSPC}, syscall.ENOSPC},
		{"no errno", errors.New("something"), syscall.EIO},
		{"errno zero", syscall.Errno(0), syscall.EIO},
		{"deadline", context.DeadlineExceeded, syscall.ETIMEDOUT},
		{"cancelled", context.Canceled, syscall.EINTR},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, addr := startServer(t, map[wire.Op]Handler{
				wire.OpCreate: func(_ context.Context, _ *Request, resp *Response) error {
					resp.Body, resp.Data = raw("the one that is there"), []byte("not sent")
					return c.err
				},
			}, nil)
			p := startPeers(t, addr, nil)
			call := Call{Op: wire.OpCreate, Into: make([]byte, 100)}
			wantErrno(t, p.To(3).Do(context.Background(), &call), c.want)
			if string(call.ErrBody) != "the one that is there" || call.N != 0 {
				t.Errorf("reply is %q with %d bytes of data", call.ErrBody, call.N)
			}
		})
	}
}

func TestHandlerPanic(t *testing.T) {
	for _, inline := range []bool{true, false} {
		done := make(chan struct{}, 1)
		s, addr := startServer(t, map[wire.Op]Handler{
			wire.OpLookup: func(_ context.Context, req *Request, resp *Response) error {
				if len(req.Body) == 0 {
					resp.Done = func() { done <- struct{}{} }
					panic("a bug")
				}
				return nil
			},
		}, func(c *ServerConfig) { c.Inline = func(wire.Op) bool { return inline } })
		p := startPeers(t, addr, nil)
		wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}), syscall.EIO)
		<-done
		if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup, Body: raw([]byte{1})}); err != nil {
			t.Fatalf("after the panic: %v", err)
		}
		if n := s.Stats().Panics; n != 1 {
			t.Errorf("%d panics counted, want 1", n)
		}
	}
}

// TestInlineThatWaits: an inline op that would block moves to another goroutine, so that it does not delay the next
// requests on its connection.
func TestInlineThatWaits(t *testing.T) {
	free := make(chan struct{})
	var tries, undone atomic.Int32
	_, addr := startServer(t, map[wire.Op]Handler{
		wire.OpLookup: func(ctx context.Context, req *Request, resp *Response) error {
			if len(req.Body) == 0 {
				return nil
			}
			tries.Add(1)
			resp.Body, resp.Done = raw(req.Body), func() { undone.Add(1) }
			select {
			case <-free:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}, func(c *ServerConfig) { c.Inline = func(wire.Op) bool { return true } })
	to := startPeers(t, addr, nil).To(3)
	call := Call{Op: wire.OpLookup, Body: raw("wait"), Reply: raw("")}
	first := make(chan error, 1)
	go func() { first <- to.Do(context.Background(), &call) }()
	eventually(t, "the first call waits", func() bool { return tries.Load() == 2 })
	if err := to.Do(context.Background(), &Call{Op: wire.OpLookup}); err != nil {
		t.Fatal(err)
	}
	close(free)
	if err := <-first; err != nil || reply(&call) != "wait" {
		t.Errorf("the call that waited = %q, %v", reply(&call), err)
	}
	eventually(t, "both responses are done", func() bool { return undone.Load() == 2 })
}

// TestInlineWhenIdle: the reader goroutine answers the only request outstanding on a connection.
func TestInlineWhenIdle(t *testing.T) {
	free := make(chan struct{})
	var waiting atomic.Int32
	_, addr := startServer(t, map[wire.Op]Handler{
		wire.OpRead: func(ctx context.Context, req *Request, resp *Response) error {
			inline := ctx.Err() != nil
			if len(req.Body) > 0 {
				if inline {
					return ctx.Err() // like a handler that would have to wait
				}
				waiting.Add(1)
				<-free
			}
			resp.Body = raw(strconv.AppendBool(nil, inline))
			return nil
		},
	}, func(c *ServerConfig) { c.InlineWhenIdle = func(op wire.Op) bool { return op == wire.OpRead } })
	to := startPeers(t, addr, func(c *PeersConfig) { c.Conns = 1 }).To(3)
	where := func() string {
		t.Helper()
		c := Call{Op: wire.OpRead, Reply: raw("")}
		if err := to.Do(context.Background(), &c); err != nil {
			t.Fatal(err)
		}
		return reply(&c)
	}
	if got := where(); got != "true" {
		t.Errorf("alone, inline = %s, want true", got)
	}
	first := make(chan error, 1)
	go func() { first <- to.Do(context.Background(), &Call{Op: wire.OpRead, Body: raw([]byte{1})}) }()
	eventually(t, "the first call waits", func() bool { return waiting.Load() == 1 })
	if got := where(); got != "false" {
		t.Errorf("beside another, inline = %s, want false", got)
	}
	close(free)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestResponseTooLarge(t *testing.T) {
	f := tempFile(t, 10)
	for _, resp := range []Response{
		{Body: raw(make([]byte, wire.MaxFrame+1))},
		{Data: make([]byte, wire.MaxData+1)},
		{File: f, Len: wire.MaxData + 1},
		{File: f, Len: -1},
		{File: f, Off: -1},
		{File: f, Data: []byte{1}},
	} {
		_, addr := startServer(t, map[wire.Op]Handler{
			wire.OpRead: func(_ context.Context, _ *Request, r *Response) error { *r = resp; return nil },
		}, nil)
		p := startPeers(t, addr, nil)
		err := p.To(3).Do(context.Background(), &Call{Op: wire.OpRead, Into: make([]byte, 100)})
		wantErrno(t, err, syscall.EIO)
	}
}

// tempFile creates a file of n distinct bytes.
func tempFile(t testing.TB, n int) *os.File {
	t.Helper()
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	path := filepath.Join(t.TempDir(), "object")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// readHandler returns a handler that answers reads from f as a daemon does.
func readHandler(f *os.File) Handler {
	return func(_ context.Context, req *Request, resp *Response) error {
		var r wire.ReadReq
		if err := wire.Parse(req.Body, &r); err != nil {
			return err
		}
		resp.File, resp.Off, resp.Len = f, r.Off, int64(r.Len)
		return nil
	}
}

// At most MaxInFlight requests of a connection are outstanding: the next one is not even read.
func TestInFlightIsBounded(t *testing.T) {
	release := make(chan struct{})
	handlers := map[wire.Op]Handler{wire.OpLookup: func(ctx context.Context, _ *Request, _ *Response) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}}
	s, addr := startServer(t, handlers, func(c *ServerConfig) { c.MaxInFlight = 3 })
	conn := dialShaken(t, addr, wire.PurposeMeta)
	for tag := range uint32(10) {
		_, _ = conn.Write(lookup(tag))
	}
	eventually(t, "three under way", func() bool { return s.Stats().InFlight == 3 })
	if st := s.Stats(); st.Requests[wire.OpLookup] != 3 {
		t.Errorf("%d requests were begun, want 3", st.Requests[wire.OpLookup])
	}
	close(release)
	for range 10 {
		readReply(t, conn)
	}
}

// Busy bulk handlers leave room for metadata, and both are bounded.
func TestWorkersAreBounded(t *testing.T) {
	release := make(chan struct{})
	wait := func(ctx context.Context, _ *Request, _ *Response) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}
	s, addr := startServer(t, map[wire.Op]Handler{wire.OpWrite: wait, wire.OpLookup: echo},
		func(c *ServerConfig) { c.MaxWorkers = 2 })
	var conns []net.Conn
	for range 4 {
		conn := dialShaken(t, addr, wire.PurposeBulk)
		_, _ = conn.Write(wire.Header{Op: wire.OpWrite}.Append(nil))
		conns = append(conns, conn)
	}
	eventually(t, "four requests", func() bool { return s.Stats().InFlight == 4 })
	s.bulk.mu.Lock()
	if s.bulk.n != 2 {
		t.Errorf("%d bulk workers, want 2", s.bulk.n)
	}
	s.bulk.mu.Unlock()
	meta := dialShaken(t, addr, wire.PurposeMeta)
	_, _ = meta.Write(lookup(1))
	readReply(t, meta)
	close(release)
	for _, c := range conns {
		readReply(t, c)
	}
}

func TestStream(t *testing.T) {
	got := make(chan metadata.NodeID, 1)
	s, addr := startServer(t, echoes, func(c *ServerConfig) {
		c.Stream = func(conn net.Conn, peer metadata.NodeID) {
			got <- peer
			_, _ = io.Copy(conn, conn)
		}
	})
	p := startPeers(t, addr, nil)
	conn, err := p.Stream(context.Background(), 3)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if peer := <-got; peer != 1 {
		t.Errorf("stream from node %d, want 1", peer)
	}
	if _, err := conn.Write([]byte("raft")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != "raft" {
		t.Fatalf("read %q, %v", b, err)
	}
	_ = s.Close() // closes a stream whose Stream has not returned
	if _, err := conn.Read(b); err == nil {
		t.Error("the stream outlived Close")
	}
}

func TestStreamWithoutTaker(t *testing.T) {
	_, addr := startServer(t, echoes, nil)
	p := startPeers(t, addr, nil)
	conn, err := p.Stream(context.Background(), 3)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wantCut(t, conn)
}

func TestServeAfterClose(t *testing.T) {
	s, err := NewServer(ServerConfig{Key: testKey, Job: testJob, Handlers: echoes})
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(l); err != nil {
		t.Errorf("Serve = %v, want nil", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is still open: %v", err)
	}
}

// tiredListener first runs out of descriptors, and breaks in the end.
type tiredListener struct {
	net.Listener
	errs chan error
}

func (l *tiredListener) Accept() (net.Conn, error) {
	if err, more := <-l.errs; more {
		return nil, err
	}
	return l.Listener.Accept()
}

func TestAcceptErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		ends bool
	}{
		{&net.OpError{Op: "accept", Err: os.NewSyscallError("accept", syscall.EMFILE)}, false},
		{&net.OpError{Op: "accept", Err: os.NewSyscallError("accept", syscall.EINVAL)}, true},
	} {
		s, err := NewServer(ServerConfig{Key: testKey, Job: testJob, Self: 3, Handlers: echoes})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		tired := &tiredListener{Listener: l, errs: make(chan error, 1)}
		tired.errs <- c.err
		close(tired.errs)
		served := make(chan error, 1)
		go func() { served <- s.Serve(tired) }()
		if c.ends {
			if err := <-served; !errors.Is(err, syscall.EINVAL) {
				t.Errorf("Serve = %v, want EINVAL", err)
			}
			_ = s.Close()
			continue
		}
		dialShaken(t, l.Addr().String(), wire.PurposeMeta)
		_ = s.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve = %v, want nil", err)
		}
	}
}

func (r Rejected) sum() (all int64) {
	for _, n := range r {
		all += n
	}
	return all
}
