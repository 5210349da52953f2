package rpc

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
)

// wantNoBuffers waits until all memory of the server is free.
func wantNoBuffers(t *testing.T, s *Server) {
	t.Helper()
	eventually(t, "all buffers are given back", func() bool {
		m := s.Stats().Memory
		return m.Out == 0 && m.InUse == 0
	})
}

// filled returns a handler that reads n bytes, as from a disk.
func filled(n int) Handler {
	return func(ctx context.Context, _ *Request, resp *Response) (err error) {
		resp.Data, err = resp.Alloc(ctx, n)
		return err
	}
}

// Many readers and writers share the memory, and all are served.
func TestMemoryIsBounded(t *testing.T) {
	const most = 3 * wire.MaxFrame
	s, addr := startServer(t, map[wire.Op]Handler{wire.OpWrite: echo, wire.OpRead: filled(wire.MaxData)},
		func(c *ServerConfig) { c.Memory, c.FrameTimeout = most, time.Minute })
	var wg sync.WaitGroup
	for i := range 64 {
		p := startPeers(t, addr, func(c *PeersConfig) { // a call waits for most of the others
			c.Conns, c.Timeout, c.FrameTimeout = 1+i%2, time.Minute, time.Minute
		})
		wg.Go(func() {
			for _, c := range []Call{
				{Op: wire.OpWrite, Data: [][]byte{make([]byte, wire.MaxData)}, Into: make([]byte, wire.MaxData)},
				{Op: wire.OpRead, Into: make([]byte, wire.MaxData)},
				{Op: wire.OpWrite, Body: raw(make([]byte, wire.MaxFrame))},
			} {
				if err := p.To(3).Do(context.Background(), &c); err != nil {
					t.Error(err)
				}
			}
			p.Close()
		})
	}
	wg.Wait()
	wantNoBuffers(t, s)
	// Readers use small buffers, one per connection.
	if m := s.Stats().Memory; m.Most != most || m.Peak > most+128*smallBuffer {
		t.Errorf("memory was %+v, want a peak of at most %d", m, most)
	}
}

// A peer that does not read its replies holds only part of the memory, and metadata does not wait for bulk data.
func TestMemoryIsShared(t *testing.T) {
	s, addr := startServer(t, map[wire.Op]Handler{wire.OpLookup: echo, wire.OpRead: filled(wire.MaxData)},
		func(c *ServerConfig) { c.Memory = connMemory + 2*wire.MaxFrame })
	greedy := dialShaken(t, addr, wire.PurposeBulk)
	for tag := range uint32(60) {
		_, _ = greedy.Write(wire.Header{Op: wire.OpRead, Tag: tag}.Append(nil))
	}
	eventually(t, "one has what it can have", func() bool { return s.Stats().Memory.InUse > connMemory-2*bufferBytes(wire.MaxData) })
	p := startPeers(t, addr, nil)
	for range 20 {
		if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpRead, Into: make([]byte, wire.MaxData)}); err != nil {
			t.Fatal(err)
		}
		if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup, Body: raw(make([]byte, wire.MaxFrame))}); err != nil {
			t.Fatal(err)
		}
	}
	_ = greedy.Close()
	wantNoBuffers(t, s)
}

// bufferBytes returns the size of the buffer for n bytes.
func bufferBytes(n int) int64 {
	for _, size := range bufferSizes {
		if n <= size {
			return int64(size)
		}
	}
	return 0
}

// A request that waits for memory ends with its caller, and holds no memory.
func TestWaitForMemoryEnds(t *testing.T) {
	release := make(chan struct{})
	var held sync.WaitGroup
	held.Add(3)
	s, addr := startServer(t, map[wire.Op]Handler{
		wire.OpRead: func(ctx context.Context, _ *Request, resp *Response) error {
			_, err := resp.Alloc(ctx, wire.MaxData)
			if err == nil {
				held.Done()
				<-release
			}
			return err
		},
	}, func(c *ServerConfig) { c.Memory = wire.MaxFrame })
	defer sync.OnceFunc(func() { close(release) })()
	p := startPeers(t, addr, nil)
	var wg sync.WaitGroup
	for range 3 { // as many as fit
		wg.Go(func() {
			if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpRead}); err != nil {
				t.Error(err)
			}
		})
	}
	held.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	wantErrno(t, p.To(3).Do(ctx, &Call{Op: wire.OpRead}), syscall.ETIMEDOUT)
	eventually(t, "the end of who waited", func() bool { return s.Stats().InFlight == 3 })
	for range 3 {
		release <- struct{}{}
	}
	wg.Wait()
	wantNoBuffers(t, s)
}

func TestAllocMisused(t *testing.T) {
	s, addr := startServer(t, map[wire.Op]Handler{
		wire.OpRead: func(ctx context.Context, req *Request, resp *Response) error {
			n := map[string]int{"negative": -1, "too large": wire.MaxFrame + 1, "twice": 5000}[string(req.Body)]
			_, err := resp.Alloc(ctx, n)
			if string(req.Body) == "twice" && err == nil {
				_, err = resp.Alloc(ctx, n)
			}
			return err
		},
	}, nil)
	p := startPeers(t, addr, nil)
	for _, how := range []string{"negative", "too large", "twice"} {
		wantErrno(t, p.To(3).Do(context.Background(), &Call{Op: wire.OpRead, Body: raw(how)}), syscall.EINVAL)
	}
	wantNoBuffers(t, s)
	if _, err := NewServer(ServerConfig{Key: testKey, Job: testJob, Handlers: echoes, Memory: wire.MaxFrame - 1}); err == nil {
		t.Error("a server that cannot hold a frame is made")
	}
}
