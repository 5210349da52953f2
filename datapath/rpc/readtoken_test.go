package rpc

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

// unserved returns a connection without a reader goroutine, and the peer's end.
func unserved(t *testing.T) (*clientConn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = far.Close()
	})
	return newClientConn(startPeers(t, "", nil).To(3).(*peer).meta, conn, newNonce()), far
}

// lookupOn makes a call on c and wants the given reply.
func lookupOn(c *clientConn, want string) error {
	call := Call{Op: wire.OpLookup}
	w := newWaiter(context.Background(), time.Minute, &call)
	defer w.release()
	err := c.do(context.Background(), w)
	if err == nil && string(w.reply.B) != want {
		err = fmt.Errorf("the answer is %q, want %q", w.reply.B, want)
	}
	return err
}

// A lone call needs no other goroutine for its reply, and releases the read token for the next one.
func TestLoneCallerReadsItsAnswer(t *testing.T) {
	c, far := unserved(t)
	for i := range 20 {
		want := fmt.Sprint("answer ", i)
		if _, err := far.Write(frame(wire.Header{Op: wire.OpLookup, Tag: uint32(i + 1)}, want, "")); err != nil {
			t.Fatal(err)
		}
		if err := lookupOn(c, want); err != nil {
			t.Fatal(err)
		}
		if h := request(t, far); h.Tag != uint32(i+1) {
			t.Fatalf("request %d has tag %d", i, h.Tag)
		}
		if len(c.readToken) > 0 || !c.tokenFree {
			t.Fatal("the reading was handed over")
		}
	}
}

// Two callers, the first with the read token: in whatever order and pieces the replies arrive, each caller gets its
// own, and the token is passed on.
func TestAnswersInPieces(t *testing.T) {
	c, far := unserved(t)
	served := make(chan struct{})
	go func() {
		defer close(served)
		c.serve()
	}()
	size := len(frame(wire.Header{}, "one", ""))
	for cut := range 2*size + 1 {
		for first := range 2 {
			errs := make(chan error, 2)
			var answers [2][]byte
			for i, what := range []string{"one", "two"} {
				go func() { errs <- lookupOn(c, what) }()
				h := request(t, far)
				answers[i] = frame(wire.Header{Op: h.Op, Tag: h.Tag}, what, "")
			}
			b := append(answers[first], answers[1-first]...)
			if _, err := far.Write(b[:cut]); err != nil {
				t.Fatal(err)
			}
			if cut%8 == 0 { // longer than a caller's turn to read
				retry.Pause(t.Context(), 2*ctxPoll)
			}
			if _, err := far.Write(b[cut:]); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := <-errs; err != nil {
					t.Errorf("torn at %d, answer %d first: %v", cut, first, err)
				}
			}
		}
	}
	_ = far.Close()
	<-served
}

// A connection that ends while unused: no call is sent on it.
func TestEndOfUnwatchedConnection(t *testing.T) {
	c, far := unserved(t)
	if c.peerClosed() {
		t.Fatal("it ended too early")
	}
	_ = far.Close()
	eventually(t, "the end", c.peerClosed)
	served := make(chan struct{})
	go func() {
		defer close(served)
		c.serve()
	}()
	if err := lookupOn(c, ""); err != errUnsent {
		t.Errorf("call = %v, want %v", err, errUnsent)
	}
	<-served
}

// The end of a connection is detected even without a call.
func TestUnusedConnectionIsWatched(t *testing.T) {
	s, addr := startServer(t, echoes, nil)
	p := startPeers(t, addr, nil)
	for range 5 {
		if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.Close()
	eventually(t, "no connection", func() bool { return p.Stats().Conns == 0 })
}

// Callers that constantly give up, on breaking connections: no caller gets another's reply or waits for ever, and no
// goroutine is left.
func TestReadingIsHandedOn(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, callers := range []int{1, 2, 16} {
		for _, breaks := range []bool{false, true} {
			t.Run(fmt.Sprintf("callers=%d/breaks=%v", callers, breaks), func(t *testing.T) {
				before := runtime.NumGoroutine()
				s, addr := startServer(t, echoes, nil)
				var link cutter
				p := startPeers(t, addr, func(c *PeersConfig) {
					link.use(c)
					c.Timeout = time.Hour // exposes a caller that waits for ever
				})
				stop, stopped := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(stopped)
					tick := time.NewTicker(3 * time.Millisecond)
					defer tick.Stop()
					for breaks {
						select {
						case <-tick.C:
							link.cut()
						case <-stop:
							return
						}
					}
				}()
				hammerBy(t, p, seed, callers, 64+512/callers)
				close(stop)
				<-stopped
				p.Close()
				eventually(t, "nothing under way", func() bool { st := s.Stats(); return st.InFlight == 0 && st.Conns == 0 })
				_ = s.Close()
				eventually(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= before+2 }) // Serve's own may linger
			})
		}
	}
}
