package rpc

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

var testKey = Key{1, 2, 3}

const testJob = "77.0 test"

// startServer runs a server on the loopback interface until the test ends; by then all its memory must be free. change
// may be nil.
func startServer(t testing.TB, handlers map[wire.Op]Handler, change func(*ServerConfig)) (*Server, string) {
	t.Helper()
	cfg := ServerConfig{Key: testKey, Job: testJob, Self: 3, Handlers: handlers}
	if change != nil {
		change(&cfg)
	}
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if st := s.Stats(); st.Memory.Out != 0 || st.Memory.InUse != 0 || st.InFlight != 0 {
			t.Errorf("when all is over %d requests are under way, and %+v is not given back", st.InFlight, st.Memory)
		}
	})
	return s, l.Addr().String()
}

// startPeers creates a client for which every node is at addr.
func startPeers(t testing.TB, addr string, change func(*PeersConfig)) *Peers {
	t.Helper()
	cfg := PeersConfig{
		Key: testKey, Job: testJob, Self: 1,
		Addrs:   func(metadata.NodeID) []string { return []string{addr} },
		Timeout: 10 * time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	p, err := NewPeers(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// eventually waits until ok returns true, and fails on timeout.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: did not happen", what)
		}
	}
}

func raw[T ~string | ~[]byte](b T) *wire.Raw {
	r := wire.Raw(b)
	return &r
}

// reply returns the body of the reply to c.
func reply(c *Call) string {
	if c.ErrBody != nil {
		return string(c.ErrBody)
	}
	return string(*c.Reply.(*wire.Raw))
}

func echo(_ context.Context, req *Request, resp *Response) error {
	resp.Body, resp.Data = raw(req.Body), req.Data
	return nil
}

func wantErrno(t *testing.T, err error, want syscall.Errno) {
	t.Helper()
	var got syscall.Errno
	if !errors.As(err, &got) || got != want {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

func TestEcho(t *testing.T) {
	s, addr := startServer(t, map[wire.Op]Handler{wire.OpLookup: echo, wire.OpWrite: echo},
		func(c *ServerConfig) { c.Inline = func(op wire.Op) bool { return op == wire.OpLookup } })
	p := startPeers(t, addr, nil)
	for _, op := range []wire.Op{wire.OpLookup, wire.OpWrite} {
		c := Call{Op: op, Body: raw("hello"), Reply: raw(""), Data: [][]byte{[]byte("to "), []byte("you")}, Into: make([]byte, 10)}
		if err := p.To(3).Do(context.Background(), &c); err != nil {
			t.Fatal(err)
		}
		if reply(&c) != "hello" || string(c.Into[:c.N]) != "to you" {
			t.Fatalf("%v answered %q and %q", op, reply(&c), c.Into[:c.N])
		}
	}
	if st := s.Stats(); st.Accepted != 2 || st.Requests[wire.OpWrite] != 1 {
		t.Fatalf("stats are %+v, want two connections", st)
	}
}
