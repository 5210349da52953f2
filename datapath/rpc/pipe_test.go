package rpc

import (
	"bytes"
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

// testPipe returns a pipe of size bytes.
func testPipe(t *testing.T, size int) *datapath.Pipe {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) })
	if _, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, size); err != nil {
		t.Fatal(err)
	}
	return &datapath.Pipe{R: fds[0], W: fds[1]}
}

// got returns the data of a call with a pipe, from the pipe or from memory.
func got(t *testing.T, call *Call) []byte {
	t.Helper()
	p := call.Into[:call.N]
	if call.Pipe.N == 0 {
		return p
	}
	if call.Pipe.N != call.N {
		t.Fatalf("%d bytes in the pipe, %d in all", call.Pipe.N, call.N)
	}
	clear(call.Into)
	if err := call.Pipe.Take(call.Into); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestReadIntoPipe(t *testing.T) {
	const size = 600_000
	f := tempFile(t, size)
	want, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	memory := func(ctx context.Context, r *Request, resp *Response) error {
		var q wire.ReadReq
		if err := wire.Parse(r.Body, &q); err != nil {
			return err
		}
		b, err := resp.Alloc(ctx, int(q.Len))
		if err == nil {
			resp.Data = b[:copy(b, want[min(q.Off, size):])]
		}
		return err
	}
	for _, c := range []struct {
		name    string
		handler Handler
		tcp     bool
		pipe    int // size in bytes
		read    wire.ReadReq
		piped   bool
		full    bool
	}{
		{"from a file", readHandler(f), true, 1 << 20, wire.ReadReq{Len: 512 << 10}, true, false},
		{"from the middle of a page", readHandler(f), true, 1 << 20, wire.ReadReq{Off: 70_001, Len: 512 << 10}, true, false},
		{"from memory", memory, true, 1 << 20, wire.ReadReq{Off: 5, Len: 500_000}, true, false},
		{"to the file's end", readHandler(f), true, 1 << 20, wire.ReadReq{Off: 300_000, Len: 512 << 10}, true, false},
		{"little", readHandler(f), true, 1 << 20, wire.ReadReq{Len: pipeFrom - 1}, false, false},
		{"nothing", readHandler(f), true, 1 << 20, wire.ReadReq{Off: size, Len: 512 << 10}, false, false},
		{"a pipe without room", readHandler(f), true, 64 << 10, wire.ReadReq{Off: 1, Len: 512 << 10}, false, true},
		{"no TCP", readHandler(f), false, 1 << 20, wire.ReadReq{Len: 512 << 10}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			handlers := map[wire.Op]Handler{wire.OpRead: c.handler}
			p := pipePeers(t, handlers)
			if c.tcp {
				_, addr := startServer(t, handlers, nil)
				p = startPeers(t, addr, nil)
			}
			for range 3 { // leftovers of one call would disturb the next
				call := Call{Op: wire.OpRead, Body: &c.read, Into: make([]byte, c.read.Len), Pipe: testPipe(t, c.pipe)}
				if err := p.To(3).Do(context.Background(), &call); err != nil {
					t.Fatal(err)
				}
				lo, hi := min(c.read.Off, size), min(c.read.Off+int64(c.read.Len), size)
				if piped := call.Pipe.N > 0; piped != c.piped {
					t.Errorf("in the pipe: %v, want %v", piped, c.piped)
				}
				if b := got(t, &call); !bytes.Equal(b, want[lo:hi]) || call.Pipe.Spoilt {
					t.Fatalf("%d bytes, not the file's %d; spoilt %v", len(b), hi-lo, call.Pipe.Spoilt)
				}
			}
			if s := p.Stats(); s.Piped > 0 != c.piped || s.PipesFull > 0 != c.full || s.PipesFull > 1 {
				t.Errorf("%d bytes through pipes, %d were full", s.Piped, s.PipesFull)
			}
		})
	}
}

// TestPipeOfAnAnswerThatBreaksOff: a partial reply does not count and makes the pipe unusable; the next try uses
// memory.
func TestPipeOfAnAnswerThatBreaksOff(t *testing.T) {
	const size = 512 << 10
	f := tempFile(t, size)
	want, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	_, addr := startServer(t, map[wire.Op]Handler{wire.OpRead: readHandler(f)}, nil)
	p := NewRetrier(startPeers(t, relay(t, addr, 1<<40, 200_000), func(c *PeersConfig) { c.Conns = 1 }).To(3), func() error { return nil })
	q := wire.ReadReq{Len: size}
	call := Call{Op: wire.OpRead, Body: &q, Into: make([]byte, size), Pipe: testPipe(t, 1<<20)}
	if err := p.Do(context.Background(), &call); err != nil {
		t.Fatal(err)
	}
	if call.Pipe.N != 0 || !call.Pipe.Spoilt || call.N != size || !bytes.Equal(call.Into, want) {
		t.Errorf("%d bytes, %d of them in the pipe, spoilt %v", call.N, call.Pipe.N, call.Pipe.Spoilt)
	}
}
