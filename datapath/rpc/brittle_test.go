package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
)

// brittleConn breaks after a number of bytes.
type brittleConn struct {
	net.Conn
	left atomic.Int64
}

func (c *brittleConn) Read(p []byte) (int, error) {
	if c.left.Add(-int64(len(p))) < 0 {
		_ = c.Conn.Close()
	}
	return c.Conn.Read(p)
}

// Many callers on breaking connections, with deadlines and cancelled contexts: every successful call has its own reply,
// and no goroutine or memory is left.
func TestManyCallersOnBrittleConnections(t *testing.T) {
	before := runtime.NumGoroutine()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s, addr := startServer(t, echoes, nil)
	p := startPeers(t, addr, func(c *PeersConfig) {
		c.Backoff, c.MaxBackoff = time.Microsecond, time.Microsecond
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			b := &brittleConn{Conn: conn}
			b.left.Store(rand.Int64N(8 << 20))
			return b, nil
		}
	})
	good := hammerBy(t, p, seed, 8, 300)
	t.Logf("%d calls succeeded, %+v", good, p.Stats())
	p.Close()
	eventually(t, "nothing under way", func() bool { st := s.Stats(); return st.InFlight == 0 && st.Conns == 0 })
	_ = s.Close()
	eventually(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= before+1 }) // Serve's own may linger
}

// hammerBy runs callers with n calls each, which must not all fail; it returns the number that succeeded.
func hammerBy(t *testing.T, p *Peers, seed uint64, callers, n int) int64 {
	var good atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { good.Add(hammer(t, p, rand.New(rand.NewPCG(seed, uint64(i))), n)) })
	}
	wg.Wait()
	if good.Load() == 0 {
		t.Error("no call succeeded")
	}
	return good.Load()
}

// hammer makes n calls and checks the replies; it returns the number that succeeded.
func hammer(t *testing.T, p *Peers, r *rand.Rand, n int) (good int64) {
	for i := range n {
		body := fmt.Appendf(nil, "%d %d", r.Uint64(), i)
		data := bytes.Repeat(body, r.IntN(4000))
		call := Call{Op: wire.OpWrite, Body: raw(body), Reply: raw(""), Data: [][]byte{data}, Into: make([]byte, len(data))}
		if i%3 == 0 {
			call.Op = wire.OpLookup
		}
		ctx, cancel := context.WithCancel(context.Background())
		switch r.IntN(6) {
		case 0:
			ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(1000))*time.Microsecond)
		case 1:
			time.AfterFunc(time.Duration(r.IntN(500))*time.Microsecond, cancel)
		}
		err := p.To(3).Do(ctx, &call)
		cancel()
		var errno syscall.Errno
		switch {
		case err == nil:
			good++
			if reply(&call) != string(body) || !bytes.Equal(call.Into[:call.N], data) {
				t.Errorf("call %d: another call's answer", i)
			}
		case !errors.As(err, &errno):
			t.Errorf("call %d: error without an errno: %v", i, err)
		case errno != syscall.ECONNRESET && errno != syscall.EINTR && errno != syscall.ETIMEDOUT && errno != syscall.EHOSTDOWN:
			t.Errorf("call %d: %v", i, err)
		}
		clear(data) // the client must not read it any more
		clear(call.Into)
	}
	return good
}
