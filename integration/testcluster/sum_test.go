package testcluster

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// noisy is a connection that occasionally flips a bit of file data, written or read.
type noisy struct {
	net.Conn
	reads bool
	body  *int // bytes of the message's body still to be written
	every int64
	seen  *atomic.Int64 // large pieces
	flips *atomic.Int64
}

// large is the smallest write or read that is taken for file data.
const large = 16 << 10

func (c noisy) spoils(n int) bool {
	if n < large || c.seen.Add(1)%c.every != 0 {
		return false
	}
	c.flips.Add(1)
	return true
}

func (c noisy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.reads && c.spoils(n) {
		p[n-1] ^= 0x10
	}
	return n, err
}

func (c noisy) Write(p []byte) (int, error) {
	var h wire.Header
	switch {
	case len(p) >= wire.HeaderSize && h.Parse(p[:wire.HeaderSize]) == nil:
		*c.body = int(h.Body) - (len(p) - wire.HeaderSize)
	case *c.body > 0: // a flip there breaks the connection
		*c.body -= len(p)
	case !c.reads && c.spoils(len(p)):
		p = bytes.Clone(p)
		p[len(p)-1] ^= 0x10
	}
	return c.Conn.Write(p)
}

// TestNoisyReads: with verify=reads no reader gets a bit that flipped on the network or on a drive.
func TestNoisyReads(t *testing.T) {
	t.Parallel()
	m := files(30, 200_000)
	for i := range 8 {
		m[fmt.Sprint("whole", i)] = bytes.Repeat([]byte(fmt.Sprintf("what is on one node%d", i)), 2000)
	}
	m["striped"] = bytes.Repeat([]byte("an odd period for a chunk."), 65<<20/26)
	dir := t.TempDir()
	writeTree(t, filepath.Join(dir, "tree"), m)
	small := maps.Clone(m)
	delete(small, "striped") // if several nodes read a tar, a part of this file has no checksum
	writeTar(t, filepath.Join(dir, "a.tar"), small)
	writeTar(t, filepath.Join(dir, "b.tar"), m)
	packTar(t, filepath.Join(dir, "b.tar"), filepath.Join(dir, "b.tar.gz"))
	c := Start(t, Config{VerifyReads: true, Datasets: []job.Dataset{
		{Source: filepath.Join(dir, "tree"), Name: "tree"}, {Source: filepath.Join(dir, "a.tar"), Name: "tar"},
		{Source: filepath.Join(dir, "b.tar.gz"), Name: "packed"},
	}})
	for _, name := range []string{"tree", "tar", "packed"} {
		if ds := c.Dataset(t, 0, name); ds.Phase != cluster.Sealed {
			t.Fatalf("dataset: %+v", ds)
		}
	}
	spoilt := c.spoil(t, m["striped"])
	for i := range 8 {
		spoilt += c.spoil(t, m[fmt.Sprint("whole", i)])
	}
	if spoilt < 4 {
		t.Fatalf("%d objects were spoilt", spoilt)
	}
	var seen, flips atomic.Int64
	c.Tamper(1, func(_ int, conn net.Conn) net.Conn { return noisy{conn, true, new(int), 97, &seen, &flips} })
	reader := &Cluster{Nodes: c.Nodes[1:2]}
	readAll(t, reader, c.Dataset(t, 0, "tree").ID, m, 2)
	readAll(t, reader, c.Dataset(t, 0, "tar").ID, small, 2)
	readAll(t, reader, c.Dataset(t, 0, "packed").ID, m, 2)
	if flips.Load() == 0 {
		t.Error("no bit has flipped")
	}
	t.Logf("%d bits have flipped", flips.Load())
}

// TestNoisyStageIn: the storing node detects a bit that flips during a stage-in.
func TestNoisyStageIn(t *testing.T) {
	t.Parallel()
	m := files(60, 300_000)
	path := filepath.Join(t.TempDir(), "a.tar")
	writeTar(t, path, m)
	c := Start(t, Config{})
	var seen, flips atomic.Int64
	for i := range c.Nodes {
		c.Tamper(i, func(_ int, conn net.Conn) net.Conn { return noisy{conn, false, new(int), 29, &seen, &flips} })
	}
	if err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: path, Name: "set"}); err != nil {
		t.Fatal(err)
	}
	ds := c.Dataset(t, 0, "set")
	if flips.Load() == 0 {
		t.Error("no bit has flipped")
	}
	readAll(t, c, ds.ID, m, 1)
	if r := c.verify(t, dataset.VerifySpec{Name: "set", Keep: true}); r.Bad != 0 || r.Files != int64(len(m)) {
		t.Errorf("verify: %+v", r)
	}
}
