package rpc

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

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
	if l := to.(*peer).meta; !l.retryAt.IsZero() {
		t.Errorf("a reply leaves a back-off until %v", l.retryAt)
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

// A dial that hangs delays a call no longer than its deadline, and Close ends it.
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
