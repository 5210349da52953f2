package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// scriptConn is a connection whose peer has already sent everything.
type scriptConn struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func (c *scriptConn) Read(p []byte) (int, error)       { return c.in.Read(p) }
func (c *scriptConn) Write(p []byte) (int, error)      { return c.out.Write(p) }
func (c *scriptConn) Close() error                     { return nil }
func (c *scriptConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *scriptConn) SetDeadline(time.Time) error      { return nil }
func (c *scriptConn) SetReadDeadline(time.Time) error  { return nil }
func (c *scriptConn) SetWriteDeadline(time.Time) error { return nil }

// FuzzHandshake sends arbitrary bytes as a stranger: the handshake never succeeds.
func FuzzHandshake(f *testing.F) {
	hello := wire.Append(nil, &wire.Hello{Purpose: wire.PurposeMeta, From: 1, To: 3})
	f.Add(hello)
	f.Add(wire.Append(hello, &wire.Proof{}))
	id := newIdentity(testKey, testJob, 3, secure.Plain)
	f.Fuzz(func(t *testing.T, b []byte) {
		conn := &scriptConn{in: bytes.NewReader(b)}
		if _, hello, err := id.acceptHandshake(conn, newNonceRing(4)); err == nil {
			t.Fatalf("let in as %+v after %x", hello, b)
		}
		conn = &scriptConn{in: bytes.NewReader(b)}
		if _, err := id.dialHandshake(conn, 3, wire.PurposeMeta, newNonce()); err == nil {
			t.Fatalf("believed in a server that said %x", b)
		}
	})
}

// FuzzRequests sends arbitrary bytes as an authenticated peer: the server replies with whole frames, and only to whole
// frames.
func FuzzRequests(f *testing.F) {
	f.Add(append(lookup(1), lookup(2)...))
	f.Add(frame(wire.Header{Op: wire.OpWrite, Tag: 7}, "bo", "dat"))
	f.Add(wire.Header{Op: 999, Tag: 7}.Append(nil))
	s, err := NewServer(ServerConfig{Key: testKey, Job: testJob, Handlers: echoes,
		Inline: func(op wire.Op) bool { return op == wire.OpLookup }})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		conn := &scriptConn{in: bytes.NewReader(b)}
		_ = s.serveFrames(conn, wire.Hello{Purpose: wire.PurposeMeta})
		if n := s.stats.inFlight.Load(); n != 0 {
			t.Fatalf("%d requests are still under way", n)
		}
		checkFrames(t, conn.out.Bytes())
	})
}

func checkFrames(t *testing.T, b []byte) {
	t.Helper()
	for len(b) > 0 {
		var h wire.Header
		if err := h.Parse(b[:min(wire.HeaderSize, len(b))]); err != nil {
			t.Fatal(err)
		}
		n := wire.HeaderSize + int(h.Body+h.Data)
		if n > len(b) {
			t.Fatalf("a frame of %d bytes ends after %d", n, len(b))
		}
		b = b[n:]
	}
}

// heldConn delivers nothing until it has been written to.
type heldConn struct {
	scriptConn
	written chan struct{}
}

func (c *heldConn) Read(p []byte) (int, error) {
	<-c.written
	return c.scriptConn.Read(p)
}

func (c *heldConn) Write(p []byte) (int, error) {
	close(c.written) // one request, one write
	return len(p), nil
}

// FuzzReplies sends arbitrary bytes as a server: the call ends, and memory beyond Into is not written.
func FuzzReplies(f *testing.F) {
	f.Add(frame(wire.Header{Op: wire.OpRead, Tag: 1}, "bo", "dat"))
	f.Add(append(wire.Header{Op: wire.OpRead, Tag: 1, Data: 9}.Append(nil), "too  much"...))
	f.Add(wire.Header{Op: wire.OpRead, Tag: 2}.Append(nil))
	p, err := NewPeers(PeersConfig{Key: testKey, Job: testJob, Addrs: func(metadata.NodeID) []string { return nil }})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l := newConnPool(p, 0, wire.PurposeBulk, 1)
		c := newClientConn(l, &heldConn{scriptConn{in: bytes.NewReader(b)}, make(chan struct{})}, newNonce())
		served := make(chan struct{})
		go func() { defer close(served); c.serve() }()
		memory := make([]byte, 16)
		call := Call{Op: wire.OpRead, Into: memory[:8:8]}
		w := newWaiter(context.Background(), time.Minute, &call)
		err := c.do(context.Background(), w)
		<-served
		if errors.Is(err, errUnsent) || errors.Is(err, io.EOF) && call.N > 0 {
			t.Errorf("do = %v with %d bytes", err, call.N)
		}
		if !bytes.Equal(memory[8:], make([]byte, 8)) {
			t.Errorf("memory beyond Into was written: %x", memory)
		}
	})
}
