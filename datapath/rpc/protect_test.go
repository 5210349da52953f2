package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

var protections = []secure.Mode{secure.Plain, secure.Frames, secure.TLS}

// proxy forwards connections to a server, and passes every piece to look, which may change it.
func proxy(t *testing.T, to string, look func(up bool, p []byte)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	forward := func(from, to net.Conn, up bool) {
		defer from.Close()
		defer to.Close()
		p := make([]byte, 64<<10)
		for {
			n, err := from.Read(p)
			look(up, p[:n])
			if _, werr := to.Write(p[:n]); err != nil || werr != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			wg.Go(func() { forward(near, far, true) })
			wg.Go(func() { forward(far, near, false) })
		}
	})
	return l.Addr().String()
}

// secret is text that a listener must not see; it is in every request and reply of TestOnTheWire.
var secret = []byte("this is known plain text of a file. ")

// TestOnTheWire sends known text on every path of a connection: bodies, data, files, parts of files, pipes, streams.
// With TLS no part of it is visible on the wire; without TLS all of it is.
func TestOnTheWire(t *testing.T) {
	f := tempFile(t, 1)
	text := bytes.Repeat(secret, 10_000)
	if _, err := f.WriteAt(text, 0); err != nil {
		t.Fatal(err)
	}
	streamed := func(conn net.Conn, _ metadata.NodeID) {
		defer conn.Close()
		_, _ = io.Copy(conn, io.LimitReader(conn, int64(len(text)))) // the client compares the text
	}
	handlers := map[wire.Op]Handler{
		wire.OpLookup: echo, wire.OpWrite: echo, wire.OpRead: readHandler(f),
		wire.OpReadMany: func(_ context.Context, _ *Request, resp *Response) error {
			resp.Body = raw(secret)
			resp.Parts = []Part{{Data: secret}, {File: f, Len: int64(len(text))}}
			return nil
		},
	}
	for _, m := range protections {
		t.Run(m.String(), func(t *testing.T) {
			s, addr := startServer(t, handlers, func(c *ServerConfig) { c.Protect, c.Stream = m, streamed })
			var seen [2]sniffer
			addr = proxy(t, addr, func(up bool, p []byte) {
				i := 0
				if up {
					i = 1
				}
				seen[i].look(p)
			})
			p := startPeers(t, addr, func(c *PeersConfig) { c.Protect, c.Conns = m, 1 })
			if err := useAllPaths(t, p, text); err != nil {
				t.Fatal(err)
			}
			if got := p.Stats().Piped > 0; got != (m == secure.Plain) {
				t.Errorf("data was spliced: %v", got)
			}
			for i := range seen {
				got := seen[i].found.Load()
				if m == secure.TLS && got > 0 {
					t.Errorf("direction %d: the text is on the wire %d times", i, got)
				}
				if m != secure.TLS && got < 10_000 {
					t.Errorf("direction %d: the text is on the wire %d times: this test sees nothing", i, got)
				}
			}
			if st := s.Stats(); st.Rejected.sum() != 0 {
				t.Errorf("rejected %+v", st.Rejected)
			}
		})
	}
}

// useAllPaths makes a call of each kind, and compares the results.
func useAllPaths(t *testing.T, p *Peers, text []byte) error {
	ctx := context.Background()
	for _, c := range []struct {
		call Call
		want []byte
	}{
		{Call{Op: wire.OpLookup, Body: raw(secret), Reply: raw(""), Data: [][]byte{secret}}, secret},
		{Call{Op: wire.OpWrite, Body: raw(bytes.Repeat(secret, 600)), Reply: raw(""), Data: [][]byte{secret, text}}, append(bytes.Clone(secret), text...)},
		{Call{Op: wire.OpRead, Body: &wire.ReadReq{Len: uint32(len(text))}}, text},
		{Call{Op: wire.OpRead, Body: &wire.ReadReq{Len: uint32(len(text))}, Pipe: testPipe(t, 1<<20)}, text},
		{Call{Op: wire.OpReadMany, Reply: raw("")}, append(bytes.Clone(secret), text...)},
	} {
		c.call.Into = make([]byte, len(c.want))
		if err := p.To(3).Do(ctx, &c.call); err != nil {
			return fmt.Errorf("%v: %w", c.call.Op, err)
		}
		data := c.call.Into[:c.call.N]
		if c.call.Pipe != nil {
			data = got(t, &c.call)
		}
		if !bytes.Equal(data, c.want) {
			return fmt.Errorf("%v: other bytes", c.call.Op)
		}
	}
	conn, err := p.Stream(ctx, 3)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	sent := make(chan error, 1)
	go func() { _, err := conn.Write(text); sent <- err }()
	back := make([]byte, len(text))
	if _, err := io.ReadFull(conn, back); err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	if !bytes.Equal(back, text) {
		return errors.New("stream: other bytes")
	}
	return <-sent
}

// sniffer counts a secret in the pieces that it sees.
type sniffer struct {
	mu    sync.Mutex
	tail  []byte // guarded by mu
	found atomic.Int64
}

func (s *sniffer) look(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append(s.tail, p...)
	s.found.Add(int64(bytes.Count(all, secret)))
	s.tail = bytes.Clone(all[max(0, len(all)-len(secret)+1):])
}

// TestFlippedBits: a bit flipped on the wire ends the connection, and never changes a byte of a reply or of a handler's
// input.
func TestFlippedBits(t *testing.T) {
	const size = 40_000
	want := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	for _, m := range protections[1:] {
		t.Run(m.String(), func(t *testing.T) {
			var damaged atomic.Int64
			s, addr := startServer(t, map[wire.Op]Handler{wire.OpWrite: func(_ context.Context, req *Request, resp *Response) error {
				if !bytes.Equal(req.Data, want) {
					damaged.Add(1)
				}
				resp.Data = req.Data
				return nil
			}}, func(c *ServerConfig) { c.Protect = m })
			var passed, flips atomic.Int64
			addr = proxy(t, addr, func(_ bool, p []byte) {
				// Damages one byte per 300 KB, so that some calls and handshakes succeed.
				end := passed.Add(int64(len(p)))
				if at := end / 300_000 * 300_000; len(p) > 0 && at > end-int64(len(p)) {
					p[at-(end-int64(len(p)))] ^= byte(1 << (flips.Add(1) % 8))
				}
			})
			p := startPeers(t, addr, func(c *PeersConfig) {
				c.Protect, c.Conns, c.Backoff, c.MaxBackoff = m, 1, time.Microsecond, time.Microsecond
			})
			good, into := 0, make([]byte, size)
			for range 200 {
				clear(into)
				call := Call{Op: wire.OpWrite, Data: [][]byte{want}, Into: into}
				err := p.To(3).Do(context.Background(), &call)
				if err == nil && !bytes.Equal(into[:call.N], want) {
					t.Fatal("a reply with other bytes")
				}
				if err == nil {
					good++
				} else if !Unanswered(err) {
					t.Fatalf("error is %v, want a lost connection", err)
				}
			}
			if good == 0 || flips.Load() < 10 || damaged.Load() > 0 {
				t.Errorf("%d calls succeeded, %d bits were flipped, %d requests were changed", good, flips.Load(), damaged.Load())
			}
			if s.Stats().Rejected["tampered"] == 0 {
				t.Error("the server has not counted what was changed")
			}
		})
	}
}

// TestOtherProtection: two ends with different settings refuse each other, and both report why.
func TestOtherProtection(t *testing.T) {
	for _, server := range protections {
		for _, client := range protections {
			if server == client {
				continue
			}
			var log bytes.Buffer
			l := logrus.New()
			l.SetOutput(&log)
			s, addr := startServer(t, echoes, func(c *ServerConfig) { c.Protect, c.Log = server, logrus.NewEntry(l) })
			p := startPeers(t, addr, func(c *PeersConfig) { c.Protect = client })
			err := p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup})
			wantErrno(t, err, syscall.EHOSTDOWN)
			want := fmt.Sprintf("the peer has %v, this node %v", server, client)
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want %q", err, want)
			}
			eventually(t, "count of other settings", func() bool { return s.Stats().Rejected["protection"] >= 1 })
			p.Close()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if want = fmt.Sprintf("the peer has %v, this node %v", client, server); !strings.Contains(log.String(), want) {
				t.Errorf("the server logs %s, want %q", log.String(), want)
			}
		}
	}
}

// TestProtectedOverBrittle: many callers with deadlines on breaking, protected connections.
func TestProtectedOverBrittle(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, m := range protections[1:] {
		_, addr := startServer(t, echoes, func(c *ServerConfig) { c.Protect = m })
		p := startPeers(t, addr, func(c *PeersConfig) {
			c.Protect, c.Backoff, c.MaxBackoff = m, time.Microsecond, time.Microsecond
		})
		hammerBy(t, p, seed, 4, 150)
	}
}

// BenchmarkProtection measures the CPU time of a remote read on both ends.
func BenchmarkProtection(b *testing.B) {
	for _, size := range []int{sampleSize, 1 << 20} {
		f := tempFile(b, size)
		for _, m := range protections {
			b.Run(fmt.Sprintf("%dKiB/%v", size>>10, m), func(b *testing.B) {
				_, addr := startServer(b, map[wire.Op]Handler{wire.OpRead: readHandler(f)}, func(c *ServerConfig) { c.Protect = m })
				to := startPeers(b, addr, func(c *PeersConfig) { c.Protect = m }).To(3)
				into := make([]byte, size)
				b.SetBytes(int64(size))
				benchmark(b, 1, func(int) error {
					return to.Do(context.Background(), &Call{Op: wire.OpRead, Body: &wire.ReadReq{Len: uint32(size)}, Into: into})
				})
			})
		}
	}
}
