package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// relay is a proxy that ends its first connection after the given number of bytes in one direction; it returns its
// address.
func relay(t *testing.T, to string, requests, replies int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for ; ; requests, replies = 1<<40, 1<<40 {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go pass(out, in, requests)
			go pass(in, out, replies)
		}
	}()
	return l.Addr().String()
}

func pass(to, from net.Conn, most int64) {
	_, _ = io.CopyN(to, from, most) // ends when either side does
	_, _ = to.Close(), from.Close()
}

const (
	helloBytes = wire.HelloSize + wire.ProofSize
	replyBytes = wire.ChallengeSize + wire.VerdictSize
)

// An op that must not run twice runs once, and its reply arrives.
func TestLostCallIsAnswered(t *testing.T) {
	for _, c := range []struct {
		what              string
		op                wire.Op
		requests, replies int64 // bytes that the first connection lets pass
		says              error
	}{
		{"its answer is lost", wire.OpCreate, 1 << 40, replyBytes + 5, nil},
		{"an error is lost", wire.OpCreate, 1 << 40, replyBytes + 5, syscall.EEXIST},
		{"the error of a disk is lost", wire.OpSync, 1 << 40, replyBytes + 5, syscall.EIO},
		{"part of the answer is lost", wire.OpRename, 1 << 40, replyBytes + wire.HeaderSize + 2, nil},
		{"part of the request is lost", wire.OpMkdir, helloBytes + wire.HeaderSize + 2, 1 << 40, nil},
		{"most of the request is lost", wire.OpUnlink, helloBytes + 3, 1 << 40, syscall.ENOENT},
	} {
		t.Run(c.what, func(t *testing.T) {
			var runs atomic.Int64
			_, addr := startServer(t, map[wire.Op]Handler{
				c.op: func(_ context.Context, req *Request, resp *Response) error {
					runs.Add(1)
					resp.Body = raw(append([]byte("re: "), req.Body...))
					return c.says
				},
			}, nil)
			p := startPeers(t, relay(t, addr, c.requests, c.replies), nil)
			call := Call{Op: c.op, Body: raw("a name"), Reply: raw("")}
			if err := NewRetrier(p.To(3), hopeful).Do(context.Background(), &call); !errors.Is(err, c.says) || reply(&call) != "re: a name" {
				t.Errorf("Do = %v, %q, want %v", err, reply(&call), c.says)
			}
			if n := runs.Load(); n != 1 {
				t.Errorf("it was done %d times", n)
			}
			if n := p.Stats().Lost; n != 1 {
				t.Errorf("%d calls were lost", n)
			}
		})
	}
}

// A call that still runs when its connection breaks continues, and its reply arrives.
func TestLostCallGoesOn(t *testing.T) {
	began, release := make(chan struct{}, 1), make(chan struct{})
	_, addr := startServer(t, map[wire.Op]Handler{
		wire.OpRename: func(ctx context.Context, _ *Request, resp *Response) error {
			began <- struct{}{}
			<-release
			resp.Body = raw("done")
			return ctx.Err()
		},
	}, nil)
	var link cutter
	p := startPeers(t, addr, link.use)
	call := Call{Op: wire.OpRename, Reply: raw("")}
	done := make(chan error, 1)
	go func() { done <- NewRetrier(p.To(3), hopeful).Do(context.Background(), &call) }()
	<-began
	link.cut()
	eventually(t, "the loss", func() bool { return p.Stats().Lost == 1 })
	close(release)
	if err := <-done; err != nil || reply(&call) != "done" || len(began) > 0 {
		t.Errorf("Do = %v, %q; begun again: %v", err, reply(&call), len(began) > 0)
	}
}

// A restarted server has an empty cache: the call is not repeated, and its error says so.
func TestLostCallIsForgotten(t *testing.T) {
	var runs atomic.Int64
	var link cutter
	handlers := map[wire.Op]Handler{wire.OpCreate: func(context.Context, *Request, *Response) error {
		runs.Add(1)
		link.cut()
		return nil
	}}
	first, addr := startServer(t, handlers, nil)
	_, second := startServer(t, handlers, nil)
	to := atomic.Pointer[string]{}
	to.Store(&addr)
	p := startPeers(t, addr, func(c *PeersConfig) {
		link.use(c)
		c.Dial = func(ctx context.Context, _ string) (net.Conn, error) { return link.dial(ctx, *to.Swap(&second)) }
	})
	err := NewRetrier(p.To(3), hopeful).Do(context.Background(), &Call{Op: wire.OpCreate})
	var e *callError
	if !errors.As(err, &e) || e.cause != errForgotten || !errors.Is(err, syscall.ECONNRESET) || runs.Load() != 1 {
		t.Errorf("Do = %v after %d runs", err, runs.Load())
	}
	_ = first.Close()
}

// A peer learns nothing about another peer's calls, and a malformed lookup closes the connection.
func TestRecollectRequests(t *testing.T) {
	s, addr := startServer(t, echoes, nil)
	nonce := wire.Nonce{7}
	old := &replyCache{peer: 1}
	old.add(5, syscall.EEXIST, []byte("there"))
	s.closedReplies.add(nonce, old)
	ask := func(self metadata.NodeID, body []byte) (wire.CachedReplyResp, error) {
		conn := dialRaw(t, addr)
		id := newIdentity(testKey, testJob, self, secure.Plain)
		if _, err := id.dialHandshake(conn, 3, wire.PurposeMeta, newNonce()); err != nil {
			t.Fatal(err)
		}
		h := wire.Header{Op: wire.OpCachedReply, Tag: 9}
		if _, err := conn.Write(frame(h, string(body), "")); err != nil {
			t.Fatal(err)
		}
		var b [wire.HeaderSize]byte
		if _, err := io.ReadFull(conn, b[:]); err != nil {
			return wire.CachedReplyResp{}, err
		}
		if err := h.Parse(b[:]); err != nil || h.Tag != 9 {
			t.Fatalf("header %+v: %v", h, err)
		}
		p := make([]byte, h.Body)
		if _, err := io.ReadFull(conn, p); err != nil {
			t.Fatal(err)
		}
		var r wire.CachedReplyResp
		return r, wire.Parse(p, &r)
	}
	q := wire.CachedReplyReq{Conn: nonce, Tag: 5}
	if r, err := ask(1, wire.Append(nil, &q)); err != nil || r.Fate != wire.Answered || r.Status != syscall.EEXIST || string(r.Body) != "there" {
		t.Errorf("its own: %+v, %v", r, err)
	}
	if r, err := ask(0, wire.Append(nil, &q)); err != nil || r.Fate != wire.Unknown {
		t.Errorf("another's: %+v, %v", r, err)
	}
	q.Tag = 6
	if r, err := ask(1, wire.Append(nil, &q)); err != nil || r.Fate != wire.NotStarted {
		t.Errorf("another tag: %+v, %v", r, err)
	}
	for _, b := range [][]byte{nil, wire.Append(nil, &q)[1:], append(wire.Append(nil, &q), 0), make([]byte, smallBuffer+1)} {
		if r, err := ask(1, b); err == nil {
			t.Errorf("a request of %d bytes: %+v", len(b), r)
		}
	}
}

// The cache is bounded: it has the last replies of a connection, and the last connections.
func TestRepliesAreBounded(t *testing.T) {
	var r replyCache
	for tag := range uint32(3 * replyCacheSize) {
		r.add(tag, 0, nil)
	}
	for tag := range uint32(3 * replyCacheSize) {
		if known := r.find(tag).Fate == wire.Answered; known != (tag >= 2*replyCacheSize) {
			t.Errorf("reply %d is known: %v", tag, known)
		}
	}
	var p closedReplies
	name := func(i int) wire.Nonce { return wire.Nonce{byte(i), byte(i >> 8)} }
	for i := range 2 * replyCacheConns {
		p.add(name(i), &r)
	}
	if len(p.conns) != replyCacheConns || p.conns[name(replyCacheConns-1)] != nil || p.conns[name(replyCacheConns)] == nil {
		t.Errorf("%d connections are remembered, want the last %d", len(p.conns), replyCacheConns)
	}
}

// The many connections for bulk data evict no others from the cache.
func TestBulkConnectionsAreNotRemembered(t *testing.T) {
	s, _ := startServer(t, echoes, nil)
	meta := newNonce()
	s.unregister(meta, &serverConn{ended: make(chan struct{}), replies: replyCache{peer: 1}})
	for range replyCacheConns {
		s.unregister(newNonce(), &serverConn{ended: make(chan struct{}), room: semaphore.NewWeighted(1)})
	}
	if r := s.closedReplies.find(1, wire.CachedReplyReq{Conn: meta, Tag: 1}); r.Fate != wire.NotStarted {
		t.Errorf("fate of a call on a connection that has ended is %v, want %v", r.Fate, wire.NotStarted)
	}
	for o := range wire.MaxOp {
		if o.ReplyCached() && o.Purpose() == wire.PurposeBulk {
			t.Errorf("%v is remembered, and goes over a connection for bulk data", o)
		}
	}
}
