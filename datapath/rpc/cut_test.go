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

// endless sets timeouts so long that no call ends by itself.
func endless(cfg *PeersConfig) { cfg.Timeout, cfg.HandshakeTimeout = time.Hour, time.Hour }

// wantCutOff disconnects node 3 and checks that this ends its call, with nothing sent.
func wantCutOff(t *testing.T, p *Peers, call <-chan error) {
	t.Helper()
	p.Disconnect(3)
	patience := time.NewTimer(10 * time.Second)
	defer patience.Stop()
	select {
	case err := <-call:
		wantErrno(t, err, syscall.EHOSTDOWN)
		var e *callError
		var c *connectError
		if !errors.As(err, &e) || !errors.As(e.cause, &c) || c.cause != errGivenUp {
			t.Errorf("error is %v, want that the node is given up", err)
		}
	case <-patience.C:
		t.Fatal("a call waits on a connection to a node that is given up")
	}
	if st := p.Stats(); st.FailFast != 0 || st.Conns != 0 {
		t.Errorf("stats are %+v, want no connection, and no backoff", st)
	}
}

// begin starts a call whose result is sent to the returned channel.
func begin(p *Peers, op wire.Op) <-chan error {
	err := make(chan error, 1)
	go func() { err <- p.To(3).Do(context.Background(), &Call{Op: op}) }()
	return err
}

// Disconnect ends calls that wait for a drain. The drain still happens, and later calls connect
// again.
func TestCutEndsDrain(t *testing.T) {
	asked := make(chan struct{})
	silent := fakeServer(t, wire.PurposeBulk, func(conn net.Conn) {
		if h := request(t, conn); h.Op != wire.OpDrain {
			t.Errorf("%v came before the drain", h.Op)
		}
		close(asked)
		_, _ = conn.Read(make([]byte, 1)) // until the client closes the connection
	})
	addr := silent
	p := startPeers(t, "", func(c *PeersConfig) {
		endless(c)
		c.Addrs = func(metadata.NodeID) []string { return []string{addr} }
	})
	l := p.To(3).(*peer).bulk
	l.lost = []wire.Nonce{newNonce()}
	call := begin(p, wire.OpRead)
	<-asked
	wantCutOff(t, p, call)
	if len(l.lost) != 1 {
		t.Errorf("%d connections are to be drained, want the one that was", len(l.lost))
	}
	p.wg.Wait()
	_, addr = startServer(t, map[wire.Op]Handler{wire.OpRead: echo}, nil)
	if err := <-begin(p, wire.OpRead); err != nil {
		t.Errorf("a call after the cut: %v", err)
	}
	if len(l.lost) != 0 {
		t.Error("nothing was drained")
	}
}

// The same during the dial or the handshake, even if the dial ignores its context.
func TestCutEndsDial(t *testing.T) {
	for what, hang := range map[string]func(ctx context.Context, release <-chan struct{}) (net.Conn, error){
		"dial": func(ctx context.Context, _ <-chan struct{}) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"deaf dial": func(_ context.Context, release <-chan struct{}) (net.Conn, error) {
			<-release
			return nil, syscall.ETIMEDOUT
		},
		"handshake": func(_ context.Context, release <-chan struct{}) (net.Conn, error) {
			a, b := net.Pipe()
			go func() {
				<-release
				_ = b.Close()
			}()
			return a, nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			dialling, release := make(chan struct{}, 9), make(chan struct{})
			p := startPeers(t, "far", func(c *PeersConfig) {
				endless(c)
				c.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
					dialling <- struct{}{}
					return hang(ctx, release)
				}
			})
			defer close(release)
			for range 2 { // a call after the cut is retried as usual
				call := begin(p, wire.OpLookup)
				<-dialling
				wantCutOff(t, p, call)
			}
		})
	}
}

// A call from before a disconnect that has sent nothing does not look for another connection.
func TestCutEndsWhatIsUnsent(t *testing.T) {
	_, addr := startServer(t, echoes, nil)
	p := startPeers(t, addr, nil)
	if err := <-begin(p, wire.OpLookup); err != nil {
		t.Fatal(err)
	}
	l := p.To(3).(*peer).meta
	w := newWaiter(context.Background(), time.Hour, &Call{Op: wire.OpLookup})
	w.disconnects = l.disconnects.Load()
	conn, err := l.conn(context.Background(), w)
	if err != nil {
		t.Fatal(err)
	}
	p.Disconnect(3)
	if err := conn.do(context.Background(), w); err != errUnsent {
		t.Errorf("do on a connection that was cut = %v, want %v", err, errUnsent)
	}
	if _, err := l.conn(context.Background(), w); err != errCutOff {
		t.Errorf("another connection: %v, want %v", err, errCutOff)
	}
	w.release()
	if n := p.Stats().Dials; n != 1 {
		t.Errorf("%d dials, want 1", n)
	}
}
