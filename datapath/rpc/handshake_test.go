package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// dialRaw connects to addr without a handshake.
func dialRaw(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return conn
}

// dialShaken connects and performs the handshake.
func dialShaken(t *testing.T, addr string, purpose wire.Purpose) net.Conn {
	t.Helper()
	conn := dialRaw(t, addr)
	id := newIdentity(testKey, testJob, 1, secure.Plain)
	if _, err := id.dialHandshake(conn, 3, purpose, newNonce()); err != nil {
		t.Fatal(err)
	}
	return conn
}

// wantCut reads until the connection ends.
func wantCut(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		t.Fatalf("the connection was not cut: %v", err)
	}
}

var echoes = map[wire.Op]Handler{wire.OpLookup: echo, wire.OpWrite: echo}

func TestWrongKeyIsCut(t *testing.T) {
	for what, change := range map[string]func(*PeersConfig){
		"key": func(c *PeersConfig) { c.Key[31] ^= 1 },
		"job": func(c *PeersConfig) { c.Job = "77.1 test" },
	} {
		t.Run(what, func(t *testing.T) {
			s, addr := startServer(t, echoes, nil)
			p := startPeers(t, addr, change)
			err := p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup})
			wantErrno(t, err, syscall.EHOSTDOWN)
			if !strings.Contains(err.Error(), errKey.Error()) {
				t.Errorf("error is %v, want it to say %q", err, errKey)
			}
			eventually(t, "count of wrong keys", func() bool { return s.Stats().Rejected["key"] == 1 })
			if st := s.Stats(); st.Accepted != 0 || len(st.Requests) != 0 {
				t.Errorf("stats are %+v, want nothing accepted", st)
			}
		})
	}
}

// A client that ignores the server's proof and sends a wrong one of its own.
func TestWrongProofIsCut(t *testing.T) {
	s, addr := startServer(t, echoes, nil)
	conn := dialRaw(t, addr)
	hello := wire.Append(nil, &wire.Hello{Purpose: wire.PurposeMeta, From: 1, To: 3, Nonce: newNonce()})
	var ch [wire.ChallengeSize]byte
	if _, err := conn.Write(hello); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, ch[:]); err != nil {
		t.Fatal(err)
	}
	// The best guess is the server's own proof, sent back.
	var m wire.MAC
	copy(m[:], ch[wire.ChallengeSize-wire.MACSize:])
	if _, err := conn.Write(wire.Append(nil, &wire.Proof{MAC: m})); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write(lookup(1)) // a request that must not be read
	wantCut(t, conn)
	eventually(t, "count of wrong keys", func() bool { return s.Stats().Rejected["key"] == 1 })
	if st := s.Stats(); len(st.Requests) != 0 {
		t.Errorf("stats are %+v, want no request", st)
	}
}

// recorder is a connection that records what is written to it.
type recorder struct {
	net.Conn
	sent bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.sent.Write(p)
	return r.Conn.Write(p)
}

func TestReplayIsCut(t *testing.T) {
	for _, remember := range []bool{true, false} {
		t.Run(fmt.Sprintf("remember=%v", remember), func(t *testing.T) {
			s, addr := startServer(t, echoes, nil)
			rec := &recorder{Conn: dialRaw(t, addr)}
			id := newIdentity(testKey, testJob, 1, secure.Plain)
			if _, err := id.dialHandshake(rec, 3, wire.PurposeMeta, newNonce()); err != nil {
				t.Fatal(err)
			}
			_, _ = rec.Write(lookup(1))
			eventually(t, "the request", func() bool { return s.Stats().Requests[wire.OpLookup] == 1 })
			if !remember { // as if many handshakes had taken place since
				s.seen.mu.Lock()
				clear(s.seen.set)
				s.seen.mu.Unlock()
			}
			conn := dialRaw(t, addr)
			if _, err := conn.Write(rec.sent.Bytes()); err != nil {
				t.Fatal(err)
			}
			wantCut(t, conn)
			eventually(t, "count of the replay", func() bool {
				r := s.Stats().Rejected
				return r["replay"] == 1 && remember || r["key"] == 1 && !remember
			})
			if st := s.Stats(); st.Accepted != 1 || st.Requests[wire.OpLookup] != 1 {
				t.Errorf("stats are %+v, want the replayed request unread", st)
			}
		})
	}
}

func TestNonceRingForgets(t *testing.T) {
	r := newNonceRing(3)
	nonces := make([]wire.Nonce, 5)
	for i := range nonces {
		nonces[i] = newNonce()
		r.add(nonces[i])
	}
	for i, n := range nonces {
		if got, want := r.has(n), i >= 2; got != want {
			t.Errorf("has(%d) = %v, want %v", i, got, want)
		}
	}
	if len(r.set) != 3 {
		t.Errorf("%d nonces are kept, want 3", len(r.set))
	}
}

func TestSlowHandshakeIsCut(t *testing.T) {
	s, addr := startServer(t, echoes, func(c *ServerConfig) { c.HandshakeTimeout = 50 * time.Millisecond })
	hello := wire.Append(nil, &wire.Hello{Purpose: wire.PurposeMeta, From: 1, To: 3})
	for i, n := range []int{0, 1, wire.HelloSize} {
		conn := dialRaw(t, addr)
		if _, err := conn.Write(hello[:n]); err != nil {
			t.Fatal(err)
		}
		wantCut(t, conn)
		eventually(t, "count of slow peers", func() bool { return s.Stats().Rejected["slow"] == int64(i+1) })
	}
}

func TestVersionIsCut(t *testing.T) {
	s, addr := startServer(t, echoes, nil)
	conn := dialRaw(t, addr)
	hello := wire.Append(nil, &wire.Hello{Purpose: wire.PurposeMeta, From: 1, To: 3})
	hello[4]++
	if _, err := conn.Write(hello); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if _, herr := wire.CheckChallengeHead(answer); err != nil || herr != nil {
		t.Errorf("answer is %x, %v, want the head of a challenge", answer, err)
	}
	eventually(t, "count of versions", func() bool { return s.Stats().Rejected["version"] == 1 })
}

// A client learns the version of the server.
func TestServerOfAnotherVersion(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.ReadFull(conn, make([]byte, wire.HelloSize))
		head := wire.Append(nil, &wire.Challenge{})[:wire.ChallengeHead]
		head[4] = wire.Version + 1
		_, _ = conn.Write(head)
	}()
	p := startPeers(t, l.Addr().String(), nil)
	err = p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup})
	wantErrno(t, err, syscall.EHOSTDOWN)
	if !strings.Contains(err.Error(), fmt.Sprint("version ", wire.Version+1)) {
		t.Errorf("error is %v, want it to name the version", err)
	}
	_ = l.Close()
	<-served
}

func TestMalformedHelloIsCut(t *testing.T) {
	s, addr := startServer(t, echoes, nil)
	conn := dialRaw(t, addr)
	_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: somewhere.example.org\r\n\r\n"))
	wantCut(t, conn)
	eventually(t, "count of strangers", func() bool { return s.Stats().Rejected["malformed"] == 1 })
	conn = dialRaw(t, addr)
	_ = conn.Close()
	eventually(t, "count of those who left", func() bool { return s.Stats().Rejected["hangup"] == 1 })
}

func TestTooManyConnections(t *testing.T) {
	s, addr := startServer(t, echoes, func(c *ServerConfig) { c.MaxConns = 2 })
	first := dialShaken(t, addr, wire.PurposeMeta)
	dialShaken(t, addr, wire.PurposeBulk)
	wantCut(t, dialRaw(t, addr))
	if st := s.Stats(); st.Rejected["full"] != 1 || st.Conns != 2 {
		t.Errorf("stats are %+v, want one refused", st)
	}
	_ = first.Close()
	eventually(t, "room", func() bool { return s.Stats().Conns == 1 })
	dialShaken(t, addr, wire.PurposeMeta)
}

// Candidates are tried in order: the first does not listen, the second is another node, the third
// another job.
func TestCandidatesInOrder(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = nobody.Close()
	other, otherAddr := startServer(t, echoes, func(c *ServerConfig) { c.Self = 4 })
	job, jobAddr := startServer(t, echoes, func(c *ServerConfig) { c.Job = "78.0 test" })
	right, rightAddr := startServer(t, echoes, nil)
	p := startPeers(t, rightAddr, func(c *PeersConfig) {
		c.Addrs = func(metadata.NodeID) []string {
			return []string{nobody.Addr().String(), otherAddr, jobAddr, rightAddr}
		}
	})
	if err := p.To(3).Do(context.Background(), &Call{Op: wire.OpLookup}); err != nil {
		t.Fatal(err)
	}
	if other.Stats().Rejected["node"] != 1 || right.Stats().Accepted != 1 {
		t.Errorf("other node: %+v, right node: %+v", other.Stats(), right.Stats())
	}
	eventually(t, "the other job's refusal", func() bool { return job.Stats().Rejected["key"] == 1 })
}

func TestHandshakeOverPipe(t *testing.T) {
	for _, sameKey := range []bool{true, false} {
		a, b := net.Pipe()
		key := testKey
		if !sameKey {
			key[0]++
		}
		client, server := newIdentity(key, testJob, NoNode, secure.Plain), newIdentity(testKey, testJob, 3, secure.Plain)
		answered := make(chan error, 1)
		go func() {
			_, hello, err := server.acceptHandshake(b, newNonceRing(1))
			if err == nil && (hello.From != NoNode || hello.Purpose != wire.PurposeBulk) {
				err = fmt.Errorf("hello is %+v", hello)
			}
			answered <- err
		}()
		_, err := client.dialHandshake(a, 3, wire.PurposeBulk, newNonce())
		_ = a.Close()
		serverErr := <-answered
		_ = b.Close()
		if sameKey && (err != nil || serverErr != nil) {
			t.Errorf("same key: %v, %v", err, serverErr)
		}
		if !sameKey && (!errors.Is(err, errKey) || !errors.Is(serverErr, errKey)) {
			t.Errorf("other key: %v, %v, want %v twice", err, serverErr, errKey)
		}
	}
}

func TestKeyDoesNotShowItself(t *testing.T) {
	key := Key([]byte("0123456789abcdef0123456789abcdef"))
	s, err := NewServer(ServerConfig{Key: key, Job: "j", Handlers: echoes})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := NewPeers(PeersConfig{Key: key, Job: "j", Addrs: func(metadata.NodeID) []string { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	js, err := json.Marshal(struct{ Key Key }{key})
	if err != nil {
		t.Fatal(err)
	}
	out := string(js)
	for _, v := range []any{key, &key, ServerConfig{Key: key}, PeersConfig{Key: key}} {
		out += fmt.Sprintf("%v %+v %#v %s %x %d", v, v, v, v, v, v)
	}
	out += fmt.Sprintf("%v %+v %#v", p.cfg, p.cfg, p.id) + fmt.Sprintf("%v %+v %#v", s.cfg, s.cfg, s.id)
	for _, leak := range []string{"0123456789", "48 49 50", "0x30, 0x31", "30313233", "48, 49"} {
		if strings.Contains(out, leak) {
			t.Errorf("the key shows itself as %q in %s", leak, out)
		}
	}
}

func TestConfigsAreChecked(t *testing.T) {
	for _, c := range []ServerConfig{
		{},
		{Key: testKey, Job: "j"},
		{Key: testKey, Handlers: echoes},
		{Job: "j", Handlers: echoes},
		{Key: testKey, Job: "j", Handlers: map[wire.Op]Handler{999: echo}},
		{Key: testKey, Job: "j", Handlers: echoes, MaxConns: -1},
		{Key: testKey, Job: "j", Handlers: echoes, IdleTimeout: -1},
	} {
		if _, err := NewServer(c); err == nil {
			t.Errorf("NewServer(%+v) is accepted", c)
		}
	}
	addrs := func(metadata.NodeID) []string { return nil }
	for _, c := range []PeersConfig{
		{},
		{Key: testKey, Job: "j"},
		{Key: testKey, Addrs: addrs},
		{Job: "j", Addrs: addrs},
		{Key: testKey, Job: "j", Addrs: addrs, Conns: -1},
		{Key: testKey, Job: "j", Addrs: addrs, Timeout: -1},
	} {
		if _, err := NewPeers(c); err == nil {
			t.Errorf("NewPeers(%+v) is accepted", c)
		}
	}
}
