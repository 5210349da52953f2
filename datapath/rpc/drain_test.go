package rpc

import (
	"context"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// cutter dials, and can close the connections that it dialed.
type cutter struct {
	mu    sync.Mutex
	conns []net.Conn // guarded by mu
}

func (c *cutter) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

// use makes peers dial through it, and redial immediately after a failure.
func (c *cutter) use(cfg *PeersConfig) { cfg.Dial, cfg.Backoff, cfg.MaxBackoff = c.dial, 1, 1 }

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// begun is a handler that signals its start and then waits for release, whatever its context.
func begun(began chan<- string, release <-chan struct{}) Handler {
	return func(_ context.Context, req *Request, _ *Response) error {
		began <- string(req.Body)
		<-release
		return nil
	}
}

// A call that was lost with its connection still runs: the next call starts after it has ended.
func TestLostCallIsDrained(t *testing.T) {
	for _, op := range []wire.Op{wire.OpWrite, wire.OpSetattr} {
		t.Run(op.String(), func(t *testing.T) {
			began, release := make(chan string, 2), make(chan struct{})
			s, addr := startServer(t, map[wire.Op]Handler{op: begun(began, release)}, nil)
			defer sync.OnceFunc(func() { close(release) })()
			var link cutter
			p := startPeers(t, addr, link.use)
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- p.To(3).Do(context.Background(), &Call{Op: op, Body: raw("first")}) }()
			<-began
			link.cut()
			wantErrno(t, <-first, syscall.ECONNRESET)
			go func() { second <- p.To(3).Do(context.Background(), &Call{Op: op, Body: raw("second")}) }()
			eventually(t, "the second connection", func() bool { return s.Stats().Accepted == 2 })
			select {
			case which := <-began:
				t.Fatalf("the %s call began while the first was running", which)
			case err := <-second:
				t.Fatalf("the second call ended: %v", err)
			case <-time.After(50 * time.Millisecond): // long enough for a call that does not wait
			}
			release <- struct{}{}
			if which := <-began; which != "second" {
				t.Errorf("the %s call began, want the second", which)
			}
			release <- struct{}{}
			if err := <-second; err != nil {
				t.Error(err)
			}
		})
	}
}

// A handler that honours its context is ended, and does not delay the next one.
func TestDrainEndsHandlers(t *testing.T) {
	began := make(chan struct{}, 1)
	_, addr := startServer(t, map[wire.Op]Handler{
		wire.OpRead: func(ctx context.Context, _ *Request, _ *Response) error {
			began <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		},
		wire.OpWrite: echo,
	}, nil)
	var link cutter
	p := startPeers(t, addr, link.use)
	lost := make(chan error, 1)
	go func() { lost <- p.To(3).Do(context.Background(), &Call{Op: wire.OpRead}) }()
	<-began
	link.cut()
	wantErrno(t, <-lost, syscall.ECONNRESET)
	if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpWrite}); err != nil {
		t.Error(err)
	}
}

// While the lost call runs, other calls fail as for a node that is down, and send nothing.
func TestNotDrained(t *testing.T) {
	began, release := make(chan string, 9), make(chan struct{})
	defer close(release)
	_, addr := startServer(t, map[wire.Op]Handler{wire.OpWrite: begun(began, release)}, nil)
	var link cutter
	p := startPeers(t, addr, func(c *PeersConfig) { c.Dial, c.Timeout = link.dial, 100*time.Millisecond })
	wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpWrite}), syscall.ETIMEDOUT)
	<-began
	link.cut()
	eventually(t, "the loss", func() bool { return p.Stats().Conns == 0 })
	eventually(t, "a call that fails at once", func() bool {
		return p.To(3).Do(context.Background(), &Call{Op: wire.OpWrite}) != nil && p.Stats().FailFast > 0
	})
	wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpWrite}), syscall.EHOSTDOWN)
	if len(began) > 0 {
		t.Error("another call began")
	}
}

// drain asks the peer on conn to drain conns and returns the status.
func drain(t *testing.T, conn net.Conn, conns ...wire.Nonce) syscall.Errno {
	t.Helper()
	body := wire.Append(nil, &wire.DrainReq{Conns: conns})
	if _, err := conn.Write(frame(wire.Header{Op: wire.OpDrain, Tag: 9, Wait: 10_000}, string(body), "")); err != nil {
		t.Fatal(err)
	}
	h, _ := readReply(t, conn)
	if h.Op != wire.OpDrain || h.Tag != 9 {
		t.Fatalf("reply to drain is %+v", h)
	}
	return h.Status
}

func TestDrainRequests(t *testing.T) {
	_, addr := startServer(t, echoes, nil)
	shake := func(self metadata.NodeID, nonce wire.Nonce) net.Conn {
		conn := dialRaw(t, addr)
		id := newIdentity(testKey, testJob, self, secure.Plain)
		if _, err := id.dialHandshake(conn, 3, wire.PurposeBulk, nonce); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	answers := func(conn net.Conn) bool {
		_, err := conn.Write(lookup(1))
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, wire.HeaderSize+4))
		}
		return err == nil
	}
	own, other, late := newNonce(), newNonce(), newNonce()
	mine, theirs := shake(1, own), shake(2, other)
	if !answers(theirs) { // the connection is served, not just accepted
		t.Fatal("the connection of another peer is not served")
	}
	if no := drain(t, mine, own, other, late); no != 0 {
		t.Errorf("drain is %v, want no error", no)
	}
	if !answers(mine) || !answers(theirs) {
		t.Error("a connection was cut that the peer has not lost, or that is another's")
	}
	if answers(shake(1, late)) {
		t.Error("a connection that was given up before it began is served")
	}
	again := shake(1, newNonce())
	if no := drain(t, again, own); no != 0 {
		t.Errorf("drain is %v, want no error", no)
	}
	wantCut(t, mine)
	for _, body := range [][]byte{{1}, {0, 0}, make([]byte, wire.MaxDrainReq+1)} {
		conn := shake(1, newNonce())
		_, _ = conn.Write(frame(wire.Header{Op: wire.OpDrain}, string(body), ""))
		wantCut(t, conn)
	}
}

// A peer that cannot drain counts as unreachable.
func TestPeerThatDoesNotDrain(t *testing.T) {
	for what, answer := range map[string]func(h wire.Header) []byte{
		"another tag": func(h wire.Header) []byte { return wire.Header{Op: h.Op, Tag: h.Tag + 1}.Append(nil) },
		"a body":      func(h wire.Header) []byte { return frame(wire.Header{Op: h.Op, Tag: h.Tag}, "1", "") },
		"a status":    func(h wire.Header) []byte { return wire.Header{Op: h.Op, Tag: h.Tag, Status: syscall.EIO}.Append(nil) },
		"nothing":     func(wire.Header) []byte { return nil },
	} {
		t.Run(what, func(t *testing.T) {
			addr := fakeServer(t, wire.PurposeBulk, func(conn net.Conn) { _, _ = conn.Write(answer(request(t, conn))) })
			p := startPeers(t, addr, nil)
			l := p.To(3).(*peer).bulk
			l.lost = []wire.Nonce{newNonce()}
			wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpRead}), syscall.EHOSTDOWN)
			if st := p.Stats(); st.Conns != 0 || len(l.lost) != 1 {
				t.Errorf("stats are %+v, want no connection, and what was lost still is", st)
			}
		})
	}
}

// Heartbeats get through while lost calls still run.
func TestReportsDoNotDrain(t *testing.T) {
	began, release := make(chan string, 2), make(chan struct{})
	_, addr := startServer(t, map[wire.Op]Handler{wire.OpSetattr: begun(began, release), wire.OpWrite: begun(began, release), wire.OpReport: echo}, nil)
	defer close(release)
	var link cutter
	p := startPeers(t, addr, link.use)
	lost := make(chan error, 2)
	for _, op := range []wire.Op{wire.OpSetattr, wire.OpWrite} {
		go func() { lost <- p.To(3).Do(context.Background(), &Call{Op: op}) }()
		<-began
	}
	link.cut()
	for range 2 {
		wantErrno(t, <-lost, syscall.ECONNRESET)
	}
	if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpReport}); err != nil {
		t.Errorf("report = %v", err)
	}
}
