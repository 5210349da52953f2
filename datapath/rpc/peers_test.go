package rpc

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// stuck returns a handler that waits for its context or for release.
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
	// A handler that ignores its context: the caller's deadline applies.
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
	wantErrno(t, p.To(3).Do(ctx, &Call{Op: wire.OpLookup}), syscall.ETIMEDOUT) // already expired
	if n := p.Stats().TimedOut; n != 2 {
		t.Errorf("%d calls timed out, want 2", n)
	}
	if n := s.Stats().Requests[wire.OpLookup]; n != 2 {
		t.Errorf("%d requests, want 2: one was over before it began", n)
	}
}

// The handler's context has the caller's deadline, and ends with the connection.
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
	close(release) // the late reply has no caller; the connection survives
	c := Call{Op: wire.OpGetattr, Body: raw("x"), Reply: raw("")}
	if err := p.To(3).Do(context.Background(), &c); err != nil || reply(&c) != "x" {
		t.Fatalf("after the cancelled call: %q, %v", reply(&c), err)
	}
	if st := p.Stats(); st.Conns != 1 || st.Dials != 1 || st.Interrupted != 2 {
		t.Errorf("stats are %+v, want one connection and two interrupted calls", st)
	}
	eventually(t, "no call under way", func() bool {
		l := p.To(3).(*peer).meta
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.conns) == 1 && len(l.conns[0].inFlight) == 0
	})
}

// asked counts the calls to Done.
type asked struct {
	context.Context
	n atomic.Int32
}

func (a *asked) Done() <-chan struct{} {
	a.n.Add(1)
	return a.Context.Done()
}

// TestQuickCallAsksNoContext: a call that is answered soon does not call Done on its context, which would create a
// timer.
func TestQuickCallAsksNoContext(t *testing.T) {
	_, addr := startServer(t, map[wire.Op]Handler{wire.OpGetattr: echo}, nil)
	to := startPeers(t, addr, nil).To(3)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	eventually(t, "a quick call", func() bool { // a single call may be slow
		a := &asked{Context: ctx}
		if err := to.Do(a, &Call{Op: wire.OpGetattr}); err != nil {
			t.Fatal(err)
		}
		return a.n.Load() == 0
	})
}

func TestCallTooLarge(t *testing.T) {
	p := startPeers(t, "unused", nil)
	for _, c := range []Call{
		{Op: wire.OpWrite, Data: [][]byte{make([]byte, wire.MaxData), {1}}},
		{Op: wire.OpWrite, Body: raw(make([]byte, wire.MaxFrame+1))},
		{Op: wire.OpWrite, Body: raw(make([]byte, wire.MaxFrame)), Data: [][]byte{{1}}},
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
	c := Call{Op: wire.OpWrite, Body: raw(body), Reply: raw(""), Data: [][]byte{data[:10], data[10:]}, Into: make([]byte, wire.MaxData)}
	if err := p.To(3).Do(context.Background(), &c); err != nil {
		t.Fatal(err)
	}
	if reply(&c) != string(body) || !bytes.Equal(c.Into[:c.N], data) {
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
		{1, 0, nil}, // already reported
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

// A small call does not wait behind large ones, since it uses another connection.
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

// Connections for bulk data are opened on demand, at most four.
func TestBulkConnections(t *testing.T) {
	release := make(chan struct{})
	s, addr := startServer(t, map[wire.Op]Handler{wire.OpRead: stuck(release), wire.OpWrite: echo}, nil)
	p := startPeers(t, addr, func(c *PeersConfig) { c.Timeout = time.Hour })
	for range 10 {
		if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpWrite}); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Stats().Accepted; n != 1 {
		t.Errorf("%d connections for one call at a time, want 1", n)
	}
	l := p.To(3).(*peer).bulk
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpRead}); err != nil {
				t.Error(err)
			}
		})
		eventually(t, "the call is under way", func() bool { return s.Stats().InFlight == int64(i+1) })
		eventually(t, "no connection is being made", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.dialing == nil
		})
	}
	l.mu.Lock()
	for _, c := range l.conns {
		if n := len(c.inFlight); n != 5 {
			t.Errorf("%d calls on a connection, want 5 on each", n)
		}
	}
	l.mu.Unlock()
	close(release)
	wg.Wait()
	if n := s.Stats().Accepted; n != 4 {
		t.Errorf("%d connections, want 4", n)
	}
}
