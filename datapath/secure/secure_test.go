package secure

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

var key = []byte("a job key for tests, 32 bytes...")

func session(client bool) Session {
	return Session{Key: key, Transcript: []byte("both nonces"), Client: client}
}

// tcpPair returns both ends of a TCP connection.
func tcpPair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return client, server
}

// protect protects both ends of a connection.
func protect(t testing.TB, m Mode, client, server net.Conn) (c, s net.Conn) {
	t.Helper()
	var serr error
	var wg sync.WaitGroup
	wg.Go(func() { s, serr = Protect(server, m, session(false)) })
	c, err := Protect(client, m, session(true))
	wg.Wait()
	if err != nil || serr != nil {
		t.Fatalf("%v: %v, %v", m, err, serr)
	}
	return c, s
}

var modes = []Mode{Frames, TLS}

// TestBothWays: one end reads what the other end writes, whatever the sizes of the reads and writes.
func TestBothWays(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	want := make([]byte, 3<<20)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range want {
		want[i] = byte(r.Uint32())
	}
	for _, m := range modes {
		client, server := tcpPair(t)
		c, s := protect(t, m, client, server)
		var wg sync.WaitGroup
		send := func(conn net.Conn, seed uint64) {
			r := rand.New(rand.NewPCG(seed, 2))
			for left := want; len(left) > 0; {
				n := min(r.IntN([]int{40, 4000, 400_000}[r.IntN(3)]), len(left))
				k := r.IntN(n + 1)
				var err error
				if r.IntN(2) == 0 {
					_, err = conn.(Buffers).WriteBuffers(net.Buffers{left[:k], left[k:n]})
				} else {
					_, err = conn.Write(left[:n])
				}
				if err != nil {
					t.Errorf("%v: write: %v", m, err)
					return
				}
				left = left[n:]
			}
		}
		receive := func(conn net.Conn, seed uint64) {
			r := rand.New(rand.NewPCG(seed, 3))
			got := make([]byte, len(want))
			for n := 0; n < len(want); {
				k, err := conn.Read(got[n:min(n+1+r.IntN([]int{10, 1000, 300_000}[r.IntN(3)]), len(got))])
				if err != nil {
					t.Errorf("%v: read: %v", m, err)
					return
				}
				n += k
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%v: other bytes arrived", m)
			}
		}
		wg.Go(func() { send(c, seed) })
		wg.Go(func() { send(s, seed+1) })
		wg.Go(func() { receive(c, seed) })
		wg.Go(func() { receive(s, seed+1) })
		wg.Wait()
		_ = c.Close()
		if n, err := s.Read(make([]byte, 9)); n != 0 || err != io.EOF {
			t.Errorf("%v: after the end %d bytes, %v, want EOF", m, n, err)
		}
	}
}

// TestDeadline: reading can continue after a deadline, wherever in a record it expired.
func TestDeadline(t *testing.T) {
	for _, m := range modes {
		client, server := tcpPair(t)
		slow := &slowConn{Conn: server}
		c, s := protect(t, m, client, slow)
		slow.step = 7
		want := bytes.Repeat([]byte("a record that comes in pieces "), 100)
		if _, err := c.Write(want); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		timeouts := 0
		for n := 0; n < len(want); {
			k, err := s.Read(got[n:])
			n += k
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				timeouts++
				clear(got[n:]) // the caller may use it between two reads
			case err != nil:
				t.Fatalf("%v: after %d timeouts: %v", m, timeouts, err)
			}
		}
		if !bytes.Equal(got, want) || timeouts < 10 {
			t.Errorf("%v: %d timeouts, and other bytes", m, timeouts)
		}
	}
}

// slowConn times out at every second read, and delivers step bytes at the others.
type slowConn struct {
	net.Conn
	step int
	late bool
}

func (c *slowConn) Read(p []byte) (int, error) {
	if c.step == 0 {
		return c.Conn.Read(p)
	}
	if c.late = !c.late; c.late {
		return 0, os.ErrDeadlineExceeded
	}
	return c.Conn.Read(p[:min(c.step, len(p))])
}

// wireOf returns the bytes that c sends for each of several writes.
func wireOf(t *testing.T, writes ...string) [][]byte {
	t.Helper()
	var out [][]byte
	for _, w := range writes {
		out = append(out, []byte(w))
	}
	rec := &recorder{}
	c, err := Protect(rec, Frames, session(true))
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range writes {
		rec.sent = nil
		if _, err := io.WriteString(c, w); err != nil {
			t.Fatal(err)
		}
		out[i] = rec.sent
	}
	return out
}

// recorder is a connection that records writes, and whose reads return in.
type recorder struct {
	net.Conn
	sent []byte
	in   bytes.Reader
}

func (r *recorder) Write(p []byte) (int, error) { r.sent = append(r.sent, p...); return len(p), nil }
func (r *recorder) Read(p []byte) (int, error)  { return r.in.Read(p) }

// readAll returns what a server reads from b.
func readAll(t *testing.T, b []byte) (string, error) {
	t.Helper()
	rec := &recorder{}
	rec.in.Reset(b)
	s, err := Protect(rec, Frames, session(false))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(s)
	if _, again := s.Read(make([]byte, 1)); errors.Is(err, ErrTampered) && !errors.Is(again, ErrTampered) {
		t.Errorf("after %v the connection is read on: %v", err, again)
	}
	return string(got), err
}

// TestRecords: records that were changed, left out, repeated or moved do not verify, and none of their data is
// returned.
func TestRecords(t *testing.T) {
	r := wireOf(t, "one", "two", "three")
	if got, err := readAll(t, slices.Concat(r...)); got != "onetwothree" || err != nil {
		t.Fatalf("records of %q, %v", got, err)
	}
	for what, c := range map[string]struct {
		b    []byte
		want string
	}{
		"left out":  {slices.Concat(r[0], r[2]), "one"},
		"repeated":  {slices.Concat(r[0], r[0]), "one"},
		"moved":     {slices.Concat(r[1], r[0]), ""},
		"empty":     {slices.Concat(r[0], make([]byte, headSize+tagSize)), "one"},
		"too large": {binary.LittleEndian.AppendUint32(nil, MaxRecord+1), ""},
	} {
		if got, err := readAll(t, c.b); got != c.want || !errors.Is(err, ErrTampered) {
			t.Errorf("%s: %q, %v, want %q and %v", what, got, err, c.want, ErrTampered)
		}
	}
	whole := slices.Concat(r...)
	for bit := range 8 * len(whole) {
		b := bytes.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		got, err := readAll(t, b)
		if err == nil || !bytes.HasPrefix([]byte("onetwothree"), []byte(got)) {
			t.Errorf("bit %d flipped: %q, %v", bit, got, err)
		}
	}
	if got, err := readAll(t, whole[:len(whole)-1]); got != "onetwo" || err != io.ErrUnexpectedEOF {
		t.Errorf("cut short: %q, %v", got, err)
	}
}

// TestReflection: a record is not accepted when sent back to its sender, nor on another connection.
func TestReflection(t *testing.T) {
	r := wireOf(t, "one")[0]
	for what, s := range map[string]Session{
		"reflected":          session(true),
		"another connection": {Key: key, Transcript: []byte("other nonces")},
		"another job":        {Key: []byte("another key, also with 32 bytes.."), Transcript: []byte("both nonces")},
	} {
		rec := &recorder{}
		rec.in.Reset(r)
		c, err := Protect(rec, Frames, s)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); len(got) > 0 || !errors.Is(err, ErrTampered) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}

// TestTLSPeers: an end with another key, on another connection or with another certificate is refused, both as client
// and as server.
func TestTLSPeers(t *testing.T) {
	for what, other := range map[string]Session{
		"another connection": {Key: key, Transcript: []byte("other nonces")},
		"another job":        {Key: []byte("another key, also with 32 bytes.."), Transcript: []byte("both nonces")},
	} {
		for _, client := range []bool{true, false} {
			a, b := tcpPair(t)
			if !client {
				a, b = b, a
			}
			other.Client = client
			var wg sync.WaitGroup
			wg.Go(func() {
				c, err := Protect(a, TLS, other)
				if err == nil { // a client learns of the refusal when it reads
					_, err = c.Read(make([]byte, 1))
				}
				if err == nil {
					t.Errorf("%s: accepted the peer", what)
				}
				_ = a.Close()
			})
			c, err := Protect(b, TLS, session(!client))
			if err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			if err == nil {
				t.Errorf("%s, client %v: is accepted", what, client)
			}
			_ = b.Close()
			wg.Wait()
		}
	}
}

// TestTLSVersion: versions below TLS 1.3 are refused.
func TestTLSVersion(t *testing.T) {
	a, b := tcpPair(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		c := tls.Client(a, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
		if err := c.Handshake(); err == nil {
			t.Error("TLS 1.2 is spoken")
		}
		_ = a.Close()
	})
	if _, err := Protect(b, TLS, session(false)); err == nil {
		t.Error("TLS 1.2 is accepted")
	}
	_ = b.Close()
	wg.Wait()
}

// TestTLSFlip: a flipped bit ends the connection.
func TestTLSFlip(t *testing.T) {
	client, server := tcpPair(t)
	flip := &flipConn{Conn: server}
	c, s := protect(t, TLS, client, flip)
	flip.on = true
	if _, err := c.Write([]byte("text")); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Read(make([]byte, 9)); n != 0 || !errors.Is(err, ErrTampered) {
		t.Errorf("%d bytes, %v, want %v", n, err, ErrTampered)
	}
}

// flipConn flips a bit in the data that it reads.
type flipConn struct {
	net.Conn
	on bool
}

func (c *flipConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.on && n > 0 {
		p[n-1] ^= 4
	}
	return n, err
}

func TestPoll(t *testing.T) {
	for _, m := range []Mode{Plain, Frames, TLS} {
		client, server := tcpPair(t)
		c, s := protect(t, m, client, server)
		poll := Poll(c)
		if poll() {
			t.Errorf("%v: closed while it is open", m)
		}
		_ = s.Close()
		_ = client.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%v: %v, want EOF", m, err)
		}
		if !poll() {
			t.Errorf("%v: open after its end", m)
		}
	}
	if Poll(&recorder{}) != nil {
		t.Error("a connection without a socket can be polled")
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		encrypt, auth string
		want          Mode
		bad           bool
	}{
		{"", "", Plain, false}, {"tls", "", TLS, false}, {"", "frames", Frames, false}, {"tls", "frames", TLS, false},
		{"ssl", "", 0, true}, {"", "tls", 0, true}, {"TLS", "", 0, true},
	} {
		got, err := Parse(c.encrypt, c.auth)
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("Parse(%q, %q) = %v, %v, want %v", c.encrypt, c.auth, got, err, c.want)
		}
	}
	for m := Plain; m <= TLS; m++ {
		b, err := m.MarshalText()
		var back Mode
		if err != nil || back.UnmarshalText(b) != nil || back != m {
			t.Errorf("%q is read as %v", b, back)
		}
	}
	if _, err := Protect(nil, 9, session(true)); err == nil || new(Mode).UnmarshalText([]byte("9")) == nil {
		t.Error("an unknown mode is accepted")
	}
}

// FuzzRecords sends arbitrary bytes: only verified data is returned, including all records before the first one that
// was changed.
func FuzzRecords(f *testing.F) {
	one := []byte{3, 0, 0, 0, 'o', 'n', 'e'}
	f.Add(append(one, make([]byte, tagSize)...), uint8(1))
	f.Add([]byte{0, 0, 0, 0}, uint8(3))
	f.Add([]byte{255, 255, 255, 255}, uint8(200))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		good := wireOf(t, "first")[0]
		rec := &recorder{}
		rec.in.Reset(append(bytes.Clone(good), b...))
		s, err := Protect(rec, Frames, session(false))
		if err != nil {
			t.Fatal(err)
		}
		got, p := []byte(nil), make([]byte, int(size)+1)
		for err == nil {
			var n int
			n, err = s.Read(p)
			got = append(got, p[:n]...)
		}
		if string(got) != "first" {
			t.Fatalf("read %q of %x", got, b)
		}
		if len(b) > 0 && err == io.EOF {
			t.Fatalf("the end of %x is no error", b)
		}
	})
}
