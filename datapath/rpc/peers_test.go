package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// stuck is a handler that waits for its context or for release.
func stuck(release <-chan struct{}) Handler {
	return func(ctx context.Context, _ *Request, _ *Response) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestDeadline(t *testing.T) {
	// A handler that does not look at its context: the caller's clock counts.
	release := make(chan struct{})
	s, addr := startServer(t, map[wire.Op]Handler{
		wire.OpLookup: func(context.Context, *Request, *Response) error { <-release; return nil },
	}, nil)
	defer close(release)
	p := startPeers(t, addr, func(c *PeersConfig) { c.Timeout = 50 * time.Millisecond })
	wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}), syscall.ETIMEDOUT)

	p = startPeers(t, addr, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	wantErrno(t, p.To(3).Do(ctx, &Call{Op: wire.OpLookup}), syscall.ETIMEDOUT)
	wantErrno(t, p.To(3).Do(ctx, &Call{Op: wire.OpLookup}), syscall.ETIMEDOUT) // already over
	if n := p.Stats().TimedOut; n != 2 {
		t.Errorf("%d calls timed out, want 2", n)
	}
	if n := s.Stats().Requests[wire.OpLookup]; n != 2 {
		t.Errorf("%d requests, want 2: one was over before it began", n)
	}
}

// The handler's context knows the caller's deadline, and ends with the
// connection.
func TestHandlerContext(t *testing.T) {
	left := make(chan time.Duration, 1)
	ended := make(chan error, 1)
	_, addr := startServer(t, map[wire.Op]Handler{
		wire.OpLookup: func(ctx context.Context, _ *Request, _ *Response) error {
			d, _ := ctx.Deadline()
			left <- time.Until(d)
			<-ctx.Done()
			ended <- ctx.Err()
			return nil
		},
	}, nil)
	p := startPeers(t, addr, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	go func() {
		<-left
		left <- 0
		p.Close()
	}()
	err := p.To(3).Do(ctx, &Call{Op: wire.OpLookup})
	wantErrno(t, err, syscall.ESHUTDOWN)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context ended with %v, want cancelled", err)
	}
}

func TestCancel(t *testing.T) {
	release := make(chan struct{})
	s, addr := startServer(t, map[wire.Op]Handler{wire.OpLookup: stuck(release), wire.OpGetattr: echo}, nil)
	p := startPeers(t, addr, nil)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for s.Stats().InFlight == 0 {
			runtime.Gosched()
		}
		cancel()
	}()
	wantErrno(t, p.To(3).Do(ctx, &Call{Op: wire.OpLookup}), syscall.EINTR)
	wantErrno(t, p.To(3).Do(ctx, &Call{Op: wire.OpLookup}), syscall.EINTR)
	close(release) // the late reply has nobody; the connection goes on
	c := Call{Op: wire.OpGetattr, Body: []byte("x")}
	if err := p.To(3).Do(context.Background(), &c); err != nil || string(c.Reply) != "x" {
		t.Fatalf("after the cancelled call: %q, %v", c.Reply, err)
	}
	if st := p.Stats(); st.Conns != 1 || st.Dials != 1 || st.Interrupted != 2 {
		t.Errorf("stats are %+v, want one connection and two interrupted calls", st)
	}
	eventually(t, "no call under way", func() bool {
		l := p.To(3).(*peer).meta
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.conns) == 1 && len(l.conns[0].slots) == 0
	})
}

// asked counts how often somebody wants to know when it ends.
type asked struct {
	context.Context
	n atomic.Int32
}

func (a *asked) Done() <-chan struct{} {
	a.n.Add(1)
	return a.Context.Done()
}

// TestQuickCallAsksNoContext: the contexts of requests make something to wait
// on when they are asked for it; a call that is answered soon does not ask.
func TestQuickCallAsksNoContext(t *testing.T) {
	_, addr := startServer(t, map[wire.Op]Handler{wire.OpGetattr: echo}, nil)
	to := startPeers(t, addr, nil).To(3)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	eventually(t, "a quick call", func() bool { // one may be slow
		a := &asked{Context: ctx}
		if err := to.Do(a, &Call{Op: wire.OpGetattr}); err != nil {
			t.Fatal(err)
		}
		return a.n.Load() == 0
	})
}

// fakeServer shakes hands on one connection and then does as it is told.
func fakeServer(t *testing.T, purpose wire.Purpose, serve func(conn net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		id := newIdentity(testKey, testJob, 3)
		if hello, err := id.answer(conn, newNonceRing(1)); err != nil || hello.Purpose != purpose {
			t.Errorf("handshake: %+v, %v", hello, err)
			return
		}
		serve(conn)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// request reads one request's header and drops the rest.
func request(t *testing.T, conn net.Conn) wire.Header {
	t.Helper()
	var b [wire.HeaderSize]byte
	var h wire.Header
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		t.Error(err)
	} else if err := h.Parse(b[:]); err != nil {
		t.Error(err)
	} else if _, err := io.CopyN(io.Discard, conn, int64(h.Body+h.Data)); err != nil {
		t.Error(err)
	}
	return h
}

// A server that breaks the rules loses the connection, and the caller's memory
// beyond Into stays as it is.
func TestServerThatBreaksTheRules(t *testing.T) {
	for what, answer := range map[string]func(h wire.Header) []byte{
		"more data than asked": func(h wire.Header) []byte {
			return append(wire.Header{Op: h.Op, Tag: h.Tag, Data: 11}.Append(nil), bytes.Repeat([]byte{7}, 11)...)
		},
		"another tag": func(h wire.Header) []byte { return wire.Header{Op: h.Op, Tag: h.Tag + 1}.Append(nil) },
		"another op":  func(h wire.Header) []byte { return wire.Header{Op: wire.OpWrite, Tag: h.Tag}.Append(nil) },
		"oversized": func(h wire.Header) []byte {
			return wire.Header{Op: h.Op, Tag: h.Tag, Body: wire.MaxFrame + 1}.Append(nil)
		},
		"nonsense": func(wire.Header) []byte { return bytes.Repeat([]byte{9}, wire.HeaderSize) },
		"half a reply, then the end": func(h wire.Header) []byte {
			return append(wire.Header{Op: h.Op, Tag: h.Tag, Data: 10}.Append(nil), 1, 2, 3)
		},
		"nothing": func(wire.Header) []byte { return nil },
	} {
		t.Run(what, func(t *testing.T) {
			addr := fakeServer(t, wire.PurposeBulk, func(conn net.Conn) {
				_, _ = conn.Write(answer(request(t, conn)))
				if what != "nothing" && what != "half a reply, then the end" {
					_, _ = conn.Read(make([]byte, 1)) // until the client cuts
				}
			})
			p := startPeers(t, addr, nil)
			memory := make([]byte, 20)
			err := p.To(3).Do(context.Background(), &Call{Op: wire.OpRead, Into: memory[:10:10]})
			wantErrno(t, err, syscall.ECONNRESET)
			if !bytes.Equal(memory[10:], make([]byte, 10)) {
				t.Errorf("memory beyond Into is %v", memory[10:])
			}
			if n := p.Stats().Lost; n != 1 {
				t.Errorf("%d calls were lost, want 1", n)
			}
		})
	}
}

// A reply that begins and does not become complete: the caller leaves by its
// deadline, and nobody writes into its memory afterwards.
func TestReplyThatStalls(t *testing.T) {
	gaveUp := make(chan struct{})
	addr := fakeServer(t, wire.PurposeBulk, func(conn net.Conn) {
		h := request(t, conn)
		_, _ = conn.Write(append(wire.Header{Op: h.Op, Tag: h.Tag, Data: 10}.Append(nil), 1, 2, 3))
		<-gaveUp
		_, _ = conn.Write([]byte{4, 5, 6, 7, 8, 9, 10})
		_, _ = conn.Read(make([]byte, 1)) // until the client cuts
	})
	p := startPeers(t, addr, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	into := make([]byte, 10)
	start := time.Now()
	err := p.To(3).Do(ctx, &Call{Op: wire.OpRead, Into: into})
	wantErrno(t, err, syscall.ETIMEDOUT)
	if d := time.Since(start); d < grace || d > 10*grace {
		t.Errorf("gave up after %v, want the deadline and a grace of %v", d, grace)
	}
	clear(into)
	close(gaveUp)
	eventually(t, "the cut", func() bool { return p.Stats().Conns == 0 })
	if !bytes.Equal(into, make([]byte, 10)) {
		t.Errorf("Into was written after Do had returned: %v", into)
	}
}

// The same where the rest comes within the grace: the answer counts and the
// connection stays.
func TestReplyThatIsNearlyHere(t *testing.T) {
	begun := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	addr := fakeServer(t, wire.PurposeBulk, func(conn net.Conn) {
		h := request(t, conn)
		_, _ = conn.Write(append(wire.Header{Op: h.Op, Tag: h.Tag, Data: 6}.Append(nil), 1, 2, 3))
		close(begun)
		<-ctx.Done()
		_, _ = conn.Write([]byte{4, 5, 6})
		_, _ = conn.Read(make([]byte, 1))
	})
	p := startPeers(t, addr, nil)
	go func() {
		<-begun
		for p.Stats().BytesIn == 0 {
			runtime.Gosched()
		}
		cancel()
	}()
	call := Call{Op: wire.OpRead, Into: make([]byte, 6)}
	err := p.To(3).Do(ctx, &call)
	var errno syscall.Errno
	switch {
	case err == nil && bytes.Equal(call.Into, []byte{1, 2, 3, 4, 5, 6}):
	case errors.As(err, &errno) && errno == syscall.EINTR: // the cancel came before the reply was claimed
	default:
		t.Fatalf("Do = %v with %v", err, call.Into)
	}
	if n := p.Stats().Conns; n != 1 {
		t.Errorf("%d connections, want the one that was", n)
	}
}

// A peer that takes no bytes: a write does not outlive its deadline by more
// than the grace.
func TestRequestThatStalls(t *testing.T) {
	release := make(chan struct{})
	addr := fakeServer(t, wire.PurposeBulk, func(net.Conn) { <-release })
	defer close(release)
	p := startPeers(t, addr, func(c *PeersConfig) { c.Conns = 1 })
	data := [][]byte{make([]byte, wire.MaxData)}
	ctx, cancel := context.WithCancel(context.Background())
	const callers = 20
	errs := make(chan error, callers)
	for range callers {
		go func() { errs <- p.To(3).Do(ctx, &Call{Op: wire.OpWrite, Data: data}) }()
	}
	var last int64
	eventually(t, "a full socket", func() bool {
		n := p.Stats().BytesOut
		full := n == last && n > 2*wire.MaxData
		last = n
		return full
	})
	start := time.Now()
	cancel()
	for range callers {
		wantErrno(t, <-errs, syscall.EINTR)
	}
	if d := time.Since(start); d > 10*grace {
		t.Errorf("the callers left after %v, want a grace of %v", d, grace)
	}
}

// A peer that answers nothing for the time of a whole call loses its
// connection, so that the next call finds out by a handshake.
func TestSilentPeerIsSuspected(t *testing.T) {
	release := make(chan struct{})
	addr := fakeServer(t, wire.PurposeMeta, func(net.Conn) { <-release })
	defer close(release)
	p := startPeers(t, addr, func(c *PeersConfig) {
		c.Timeout = 100 * time.Millisecond
		c.HandshakeTimeout = 100 * time.Millisecond
		c.Backoff = time.Minute
	})
	wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}), syscall.ETIMEDOUT)
	eventually(t, "the cut", func() bool { return p.Stats().Conns == 0 })
	wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}), syscall.EHOSTDOWN)
}

func TestBackoffFailsFast(t *testing.T) {
	var dials, down atomic.Int64
	down.Store(1)
	_, addr := startServer(t, echoes, nil)
	p := startPeers(t, addr, func(c *PeersConfig) {
		c.Backoff, c.MaxBackoff = 100*time.Millisecond, 200*time.Millisecond
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			dials.Add(1)
			if down.Load() == 1 {
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	})
	to := p.To(3)
	for range 50 {
		wantErrno(t, to.Do(context.Background(), &Call{Op: wire.OpLookup}), syscall.EHOSTDOWN)
	}
	if n := dials.Load(); n == 0 || n > 10 {
		t.Errorf("%d dials for 50 calls, want few", n)
	}
	if st := p.Stats(); st.FailFast == 0 || st.Conns != 0 {
		t.Errorf("stats are %+v, want calls that failed fast", st)
	}
	down.Store(0)
	eventually(t, "a connection", func() bool { return to.Do(context.Background(), &Call{Op: wire.OpLookup}) == nil })
	if l := to.(*peer).meta; l.failures != 0 {
		t.Errorf("%d failures are remembered after a reply", l.failures)
	}
}

func TestUnreachable(t *testing.T) {
	p := startPeers(t, "nowhere", func(c *PeersConfig) {
		c.Dial = func(context.Context, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: syscall.ENETUNREACH}
		}
	})
	wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}), syscall.EHOSTUNREACH)
	p = startPeers(t, "", func(c *PeersConfig) { c.Addrs = func(metadata.NodeID) []string { return nil } })
	wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}), syscall.EHOSTUNREACH)
	if _, err := p.Stream(context.Background(), 3); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("Stream = %v, want EHOSTUNREACH", err)
	}
}

// A dial that hangs delays nobody longer than his own deadline, and Close ends
// it.
func TestDialThatHangs(t *testing.T) {
	p := startPeers(t, "far", func(c *PeersConfig) {
		c.HandshakeTimeout = time.Hour
		c.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	wantErrno(t, p.To(3).Do(ctx, &Call{Op: wire.OpLookup}), syscall.ETIMEDOUT)
	closed := make(chan error, 1)
	go func() { closed <- p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}) }()
	p.Close()
	wantErrno(t, <-closed, syscall.ESHUTDOWN)
	wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}), syscall.ESHUTDOWN)
	wantErrno(t, p.To(4).Do(context.Background(), &Call{Op: wire.OpLookup}), syscall.ESHUTDOWN)
	if _, err := p.Stream(context.Background(), 3); !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("Stream = %v, want ESHUTDOWN", err)
	}
}

func TestReconnect(t *testing.T) {
	var current atomic.Value
	p := startPeers(t, "", func(c *PeersConfig) {
		c.Addrs = func(metadata.NodeID) []string { return []string{current.Load().(string)} }
		c.Backoff, c.MaxBackoff = time.Millisecond, 5*time.Millisecond
	})
	for range 3 {
		s, addr := startServer(t, echoes, nil)
		current.Store(addr)
		eventually(t, "a call", func() bool {
			return p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}) == nil
		})
		_ = s.Close()
	}
}

func TestIdleConnectionIsRetired(t *testing.T) {
	s, addr := startServer(t, echoes, nil)
	p := startPeers(t, addr, func(c *PeersConfig) { c.IdleTimeout = 30 * time.Millisecond })
	for range 3 {
		if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "no connection", func() bool { return p.Stats().Conns == 0 && s.Stats().Conns == 0 })
	}
}

// A call that takes longer than the idle timeout keeps its connection.
func TestLongCallIsNotIdle(t *testing.T) {
	release := make(chan struct{})
	_, addr := startServer(t, map[wire.Op]Handler{wire.OpLookup: stuck(release)}, nil)
	p := startPeers(t, addr, func(c *PeersConfig) { c.IdleTimeout = 10 * time.Millisecond })
	timer := time.AfterFunc(150*time.Millisecond, func() { close(release) })
	defer timer.Stop()
	if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}); err != nil {
		t.Fatal(err)
	}
}

func TestCallTooLarge(t *testing.T) {
	p := startPeers(t, "unused", nil)
	for _, c := range []Call{
		{Op: wire.OpWrite, Data: [][]byte{make([]byte, wire.MaxData), {1}}},
		{Op: wire.OpWrite, Body: make([]byte, wire.MaxFrame+1)},
		{Op: wire.OpWrite, Body: make([]byte, wire.MaxFrame), Data: [][]byte{{1}}},
	} {
		wantErrno(t, p.To(3).Do(context.Background(), &c), syscall.EMSGSIZE)
	}
	if n := p.Stats().Dials; n != 0 {
		t.Errorf("%d dials for calls that cannot be sent", n)
	}
}

func TestLargestFrames(t *testing.T) {
	_, addr := startServer(t, echoes, nil)
	p := startPeers(t, addr, nil)
	body, data := make([]byte, wire.MaxFrame-wire.MaxData), make([]byte, wire.MaxData)
	body[len(body)-1], data[len(data)-1] = 1, 2
	c := Call{Op: wire.OpWrite, Body: body, Data: [][]byte{data[:10], data[10:]}, Into: make([]byte, wire.MaxData)}
	if err := p.To(3).Do(context.Background(), &c); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(c.Reply, body) || !bytes.Equal(c.Into[:c.N], data) {
		t.Error("the largest frame came back changed")
	}
}

func TestEpochs(t *testing.T) {
	type news struct {
		peer  metadata.NodeID
		epoch metadata.Epoch
	}
	told := make(chan news, 10)
	tell := func(peer metadata.NodeID, e metadata.Epoch) { told <- news{peer, e} }
	var server, client atomic.Uint64
	var seen atomic.Uint64
	_, addr := startServer(t, map[wire.Op]Handler{
		wire.OpLookup: func(_ context.Context, req *Request, _ *Response) error {
			seen.Store(uint64(req.Epoch))
			return nil
		},
	}, func(c *ServerConfig) {
		c.Epoch = func() metadata.Epoch { return metadata.Epoch(server.Load()) }
		c.NewerEpoch = tell
	})
	p := startPeers(t, addr, func(c *PeersConfig) {
		c.Epoch = func() metadata.Epoch { return metadata.Epoch(client.Load()) }
		c.NewerEpoch = tell
	})
	for _, step := range []struct {
		server, client uint64
		want           []news
	}{
		{0, 0, nil},
		{1, 0, []news{{3, 1}}},
		{1, 0, nil}, // told already
		{1, 1, nil},
		{1, 4, []news{{1, 4}}},
		{9, 4, []news{{3, 9}}},
	} {
		server.Store(step.server)
		client.Store(step.client)
		if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}); err != nil {
			t.Fatal(err)
		}
		if seen.Load() != step.client {
			t.Errorf("%+v: the handler saw epoch %d", step, seen.Load())
		}
		for _, want := range step.want {
			if got := <-told; got != want {
				t.Errorf("%+v: told %v, want %v", step, got, want)
			}
		}
		select {
		case got := <-told:
			t.Errorf("%+v: told %v besides", step, got)
		default:
		}
	}
}

// A small call does not wait behind large ones, because it has another
// connection.
func TestMetadataDoesNotWaitForBulk(t *testing.T) {
	release := make(chan struct{})
	_, addr := startServer(t, map[wire.Op]Handler{wire.OpWrite: stuck(release), wire.OpLookup: echo},
		func(c *ServerConfig) { c.MaxInFlight = 1 })
	p := startPeers(t, addr, func(c *PeersConfig) { c.MaxInFlight = 4 })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			c := Call{Op: wire.OpWrite, Data: [][]byte{make([]byte, wire.MaxData)}}
			if err := p.To(3).Do(context.Background(), &c); err != nil {
				t.Error(err)
			}
		})
	}
	for range 20 {
		if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}); err != nil {
			t.Error(err)
		}
	}
	close(release)
	wg.Wait()
}

// brittleConn breaks after some bytes.
type brittleConn struct {
	net.Conn
	left atomic.Int64
}

func (c *brittleConn) Read(p []byte) (int, error) {
	if c.left.Add(-int64(len(p))) < 0 {
		_ = c.Conn.Close()
	}
	return c.Conn.Read(p)
}

// Many callers on connections that break all the time, with deadlines and
// cancelled contexts: every call that succeeds has its own answer, and
// afterwards nothing is left.
func TestManyCallersOnBrittleConnections(t *testing.T) {
	before := runtime.NumGoroutine()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s, addr := startServer(t, echoes, nil)
	p := startPeers(t, addr, func(c *PeersConfig) {
		c.Backoff, c.MaxBackoff = time.Microsecond, time.Microsecond
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			b := &brittleConn{Conn: conn}
			b.left.Store(rand.Int64N(8 << 20))
			return b, nil
		}
	})
	var good atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { good.Add(hammer(t, p, rand.New(rand.NewPCG(seed, uint64(i))))) })
	}
	wg.Wait()
	t.Logf("%d calls succeeded, %+v", good.Load(), p.Stats())
	if good.Load() == 0 {
		t.Error("no call succeeded")
	}
	p.Close()
	eventually(t, "nothing under way", func() bool { st := s.Stats(); return st.InFlight == 0 && st.Conns == 0 })
	_ = s.Close()
	eventually(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= before+1 }) // Serve's own may linger
}

// hammer makes calls and checks what comes back; it returns how many succeeded.
func hammer(t *testing.T, p *Peers, r *rand.Rand) (good int64) {
	for i := range 300 {
		body := fmt.Appendf(nil, "%d %d", r.Uint64(), i)
		data := bytes.Repeat(body, r.IntN(4000))
		call := Call{Op: wire.OpWrite, Body: body, Data: [][]byte{data}, Into: make([]byte, len(data))}
		if i%3 == 0 {
			call.Op = wire.OpLookup
		}
		ctx, cancel := context.WithCancel(context.Background())
		switch r.IntN(6) {
		case 0:
			ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(1000))*time.Microsecond)
		case 1:
			time.AfterFunc(time.Duration(r.IntN(500))*time.Microsecond, cancel)
		}
		err := p.To(3).Do(ctx, &call)
		cancel()
		var errno syscall.Errno
		switch {
		case err == nil:
			good++
			if !bytes.Equal(call.Reply, body) || !bytes.Equal(call.Into[:call.N], data) {
				t.Errorf("call %d: another call's answer", i)
			}
		case !errors.As(err, &errno):
			t.Errorf("call %d: error without an errno: %v", i, err)
		case errno != syscall.ECONNRESET && errno != syscall.EINTR && errno != syscall.ETIMEDOUT && errno != syscall.EHOSTDOWN:
			t.Errorf("call %d: %v", i, err)
		}
		clear(data) // ours again: nobody may be reading it
		clear(call.Into)
	}
	return good
}
