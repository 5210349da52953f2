package testcluster

import (
	"bytes"
	"net"
	"sync/atomic"
	"testing"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/metadata"
)

// knownText is the text that an eavesdropper searches for.
var knownText = []byte("known plain text of a file on four nodes. ")

// listening counts occurrences of the known text on a connection, in both directions.
type listening struct {
	net.Conn
	found, bytes *atomic.Int64
}

func (c listening) look(p []byte) {
	c.found.Add(int64(bytes.Count(p, knownText)))
	c.bytes.Add(int64(len(p)))
}

func (c listening) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.look(p[:n])
	return n, err
}

func (c listening) Write(p []byte) (int, error) {
	c.look(p)
	return c.Conn.Write(p)
}

// TestProtected: a job with protection works: control plane, metadata, and data to and from other nodes. With
// encrypt=tls an eavesdropper sees nothing of a file.
func TestProtected(t *testing.T) {
	t.Parallel()
	text := bytes.Repeat(knownText, 100_000) // several chunks: on several nodes
	for _, m := range []secure.Mode{secure.Frames, secure.TLS} {
		var found, carried atomic.Int64
		c := Start(t, Config{Protect: m, Tamper: func(_ int, conn net.Conn) net.Conn { return listening{conn, &found, &carried} }})
		put(t, c.Nodes[0], metadata.RootIno, "secret", text, metadata.Layout{})
		if got, err := live(c.Nodes[1], "secret"); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%v: %d bytes, %v, want %d", m, len(got), err, len(text))
		}
		if n := carried.Load(); n < int64(len(text)) {
			t.Errorf("%v: a listener heard only %d bytes", m, n)
		}
		if n := found.Load(); (n == 0) != (m == secure.TLS) {
			t.Errorf("%v: the text was on the network %d times", m, n)
		}
		c.Check(t)
	}
}
