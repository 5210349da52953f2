package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
)

func TestReadFromFile(t *testing.T) {
	const size = 300_000
	f := tempFile(t, size)
	want, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, pipe := range []bool{false, true} {
		_, addr := startServer(t, map[wire.Op]Handler{wire.OpRead: readHandler(f)}, nil)
		p := startPeers(t, addr, func(c *PeersConfig) { c.Conns = 1 })
		if pipe {
			p = pipePeers(t, map[wire.Op]Handler{wire.OpRead: readHandler(f)})
		}
		for _, r := range []wire.ReadReq{
			{Off: 0, Len: size}, {Off: 1, Len: 1}, {Off: size - 5, Len: 100}, {Off: size, Len: 7}, {Off: 2 * size, Len: 7},
			{Off: 4097, Len: 110_000}, {Off: 0, Len: 0}, {Off: 0, Len: wire.MaxData},
		} {
			call := Call{Op: wire.OpRead, Body: &r, Into: make([]byte, r.Len)}
			if err := p.To(3).Do(context.Background(), &call); err != nil {
				t.Fatalf("pipe %v, %+v: %v", pipe, r, err)
			}
			lo, hi := min(r.Off, size), min(r.Off+int64(r.Len), size)
			if !bytes.Equal(call.Into[:call.N], want[lo:hi]) {
				t.Fatalf("pipe %v, %+v: %d bytes, not the file's %d", pipe, r, call.N, hi-lo)
			}
		}
	}
}

// pipePeers connects a client and a server by net.Pipe: no TCP, no sendfile.
func pipePeers(t *testing.T, handlers map[wire.Op]Handler) *Peers {
	t.Helper()
	s, err := NewServer(ServerConfig{Key: testKey, Job: testJob, Self: 3, Handlers: handlers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return startPeers(t, "pipe", func(c *PeersConfig) {
		c.Dial = func(context.Context, string) (net.Conn, error) {
			a, b := net.Pipe()
			s.admit(b)
			return a, nil
		}
	})
}

// A file that shrinks after its length was sent: the rest of the stream must not be taken for file data.
func TestFileThatShrinksCutsTheConnection(t *testing.T) {
	f := tempFile(t, 1000)
	a, b := tcpPair(t)
	s, err := NewServer(ServerConfig{Key: testKey, Job: testJob, Handlers: echoes})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w := newFrameWriter(a, time.Second, &s.stats.bytesOut)
	w.lock()
	err = w.sendParts(wire.Header{Op: wire.OpRead}, []byte("body"), Part{File: f, Off: 10, Len: 2000})
	w.unlock()
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("sendFile = %v, want an unexpected end", err)
	}
	_ = a.Close()
	got, err := io.ReadAll(b)
	if err != nil || len(got) != wire.HeaderSize+4+990 {
		t.Errorf("%d bytes came, %v, want the header, the body and the 990 there are", len(got), err)
	}
}

// The same through a server: the client sees the connection end and opens a new one.
func TestShrunkFileThroughServer(t *testing.T) {
	f := tempFile(t, 1<<20)
	handlers := map[wire.Op]Handler{
		wire.OpRead: readHandler(f),
		wire.OpWrite: func(ctx context.Context, req *Request, resp *Response) error {
			<-ctx.Done() // in progress when the connection ends
			return ctx.Err()
		},
	}
	s, addr := startServer(t, handlers, nil)
	p := startPeers(t, addr, func(c *PeersConfig) { c.Conns = 1 })
	truncating(t, f, func() error {
		return p.To(3).Do(context.Background(), &Call{
			Op: wire.OpRead, Body: &wire.ReadReq{Len: wire.MaxData}, Into: make([]byte, wire.MaxData),
		})
	})
	eventually(t, "no request under way", func() bool { return s.Stats().InFlight == 0 })
	call := Call{Op: wire.OpRead, Body: &wire.ReadReq{Len: 10}, Into: make([]byte, 10)}
	if err := p.To(3).Do(context.Background(), &call); err != nil {
		t.Fatalf("after the cuts: %v", err)
	}
}

// truncating makes calls while f shrinks and grows; each must succeed or fail immediately with ECONNRESET.
func truncating(t *testing.T, f *os.File, call func() error) {
	t.Helper()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				_ = f.Truncate(1 << 20)
				return
			default:
				_ = f.Truncate(100)
				_ = f.Truncate(1 << 20)
			}
		}
	}()
	for range 200 {
		if err := call(); err != nil {
			wantErrno(t, err, syscall.ECONNRESET)
		}
	}
	close(stop)
	<-stopped
}

// tcpPair returns both ends of a connection on the loopback interface.
func tcpPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// TestParts: parts in memory and from files arrive in order, with and without sendfile.
func TestParts(t *testing.T) {
	f := tempFile(t, 300_000)
	all, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	h := map[wire.Op]Handler{wire.OpReadMany: func(_ context.Context, _ *Request, resp *Response) error {
		resp.Parts = []Part{{Data: []byte("first")}, {File: f, Off: 7, Len: 200_000}, {Data: nil}, {File: f, Off: 299_999, Len: 1}, {Data: []byte("last")}}
		for len(resp.Parts) < 17 {
			resp.Parts = append(resp.Parts, Part{File: f, Len: 300_000}) // 3.8 MB
		}
		resp.Body = &wire.ReadManyResp{}
		return nil
	}}
	want := bytes.Join([][]byte{[]byte("first"), all[7:200_007], all[299_999:], []byte("last"), bytes.Repeat(all, 12)}, nil)
	_, addr := startServer(t, h, nil)
	for name, p := range map[string]*Peers{"sendfile": startPeers(t, addr, nil), "pipe": pipePeers(t, h)} {
		call := Call{Op: wire.OpReadMany, Body: &wire.ReadManyReq{}, Reply: &wire.ReadManyResp{}, Into: make([]byte, wire.MaxMany)}
		if err := p.To(3).Do(context.Background(), &call); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !bytes.Equal(call.Into[:call.N], want) {
			t.Errorf("%s: %d bytes, not the %d that were sent", name, call.N, len(want))
		}
	}
}

// TestShrunkPart: a file shorter than its part ends the connection or fails the call, and the next call succeeds.
func TestShrunkPart(t *testing.T) {
	f := tempFile(t, 1000)
	var n atomic.Int64
	h := map[wire.Op]Handler{wire.OpReadMany: func(_ context.Context, _ *Request, resp *Response) error {
		resp.Parts = []Part{{Data: []byte("first")}, {File: f, Len: n.Load()}}
		resp.Body = &wire.ReadManyResp{}
		return nil
	}}
	_, addr := startServer(t, h, nil)
	for name, p := range map[string]*Peers{"sendfile": startPeers(t, addr, nil), "pipe": pipePeers(t, h)} {
		n.Store(2000)
		do := func() error {
			return p.To(3).Do(context.Background(), &Call{Op: wire.OpReadMany, Body: &wire.ReadManyReq{}, Reply: &wire.ReadManyResp{}, Into: make([]byte, wire.MaxMany)})
		}
		if err := do(); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v, want ECONNRESET or EIO", name, err)
		}
		n.Store(1000)
		if err := do(); err != nil {
			t.Errorf("%s: after the cut: %v", name, err)
		}
	}
}
