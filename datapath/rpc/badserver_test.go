package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

// fakeServer performs the handshake on one connection and then runs a script.
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
		id := newIdentity(testKey, testJob, 3, secure.Plain)
		if _, hello, err := id.acceptHandshake(conn, newNonceRing(1)); err != nil || hello.Purpose != purpose {
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

// request reads one request's header and discards the rest.
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

// A server that violates the protocol loses the connection, and the caller's memory beyond Into is not written.
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
		"a body that has changed": func(h wire.Header) []byte {
			return damaged(frame(wire.Header{Op: h.Op, Tag: h.Tag}, "body", ""))
		},
		"nothing": func(wire.Header) []byte { return nil },
	} {
		t.Run(what, func(t *testing.T) {
			addr := fakeServer(t, wire.PurposeBulk, func(conn net.Conn) {
				_, _ = conn.Write(answer(request(t, conn)))
				if what != "nothing" && what != "half a reply, then the end" {
					_, _ = conn.Read(make([]byte, 1)) // until the client closes the connection
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

// A reply that never completes: the caller returns at its deadline, and its memory is not written afterwards.
func TestReplyThatStalls(t *testing.T) {
	gaveUp := make(chan struct{})
	addr := fakeServer(t, wire.PurposeBulk, func(conn net.Conn) {
		h := request(t, conn)
		_, _ = conn.Write(append(wire.Header{Op: h.Op, Tag: h.Tag, Data: 10}.Append(nil), 1, 2, 3))
		<-gaveUp
		_, _ = conn.Write([]byte{4, 5, 6, 7, 8, 9, 10})
		_, _ = conn.Read(make([]byte, 1)) // until the client closes the connection
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

// The same, but the rest arrives within the grace: the reply counts and the connection is kept.
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
	case errors.As(err, &errno) && errno == syscall.EINTR: // cancelled before the reply was claimed
	default:
		t.Fatalf("Do = %v with %v", err, call.Into)
	}
	if n := p.Stats().Conns; n != 1 {
		t.Errorf("%d connections, want the one that was", n)
	}
}

// A peer that reads nothing: a write ends at most grace after its deadline.
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

// A peer that does not reply for the duration of a whole call loses its connection, so that the next call detects its
// state with a handshake.
func TestSilentPeerIsSuspected(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	addr := fakeServer(t, wire.PurposeMeta, func(net.Conn) { <-release })
	defer close(release)
	p := startPeers(t, addr, func(c *PeersConfig) {
		c.Timeout, c.HandshakeTimeout = 2*time.Second, time.Second // a call must not end while it connects
		c.Backoff = time.Minute
	})
	wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}), syscall.ETIMEDOUT)
	eventually(t, "the cut", func() bool { return p.Stats().Conns == 0 })
	wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}), syscall.EHOSTDOWN)
}
