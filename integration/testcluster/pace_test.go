package testcluster

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/rate"
)

// TestPaces: with limits on each node's read and serve rates nothing fails, every byte they apply to is counted once,
// and no rate exceeds them.
func TestPaces(t *testing.T) {
	const bound = 4 << 20
	m := files(200, 60_000)
	m["large"] = make([]byte, 5<<20)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	fsys := newCounted()
	began := time.Now()
	c := Start(t, Config{Source: fsys, Rate: bound, ServeRate: bound, Datasets: []job.Dataset{{Source: src, Name: "set"}}})
	readAll(t, c, readable(t, c, "set").ID, m, 1)
	c.Dataset(t, 1, "set")
	took := time.Since(began)
	sum := func(which string, of func(daemon.Paces) *rate.Stats) (bytes int64) {
		for i, n := range c.Nodes {
			s := of(n.Status(context.Background()).Paces)
			if s == nil || s.Limit != bound {
				t.Fatalf("node %d: %s %+v, want a bound of %d", i, which, s, bound)
			}
			if most := int64((took + time.Second).Seconds() * bound); s.Bytes > most {
				t.Errorf("node %d: %s %d bytes in %v", i, which, s.Bytes, took)
			}
			bytes += s.Bytes
		}
		return bytes
	}
	if got := sum("staged", func(p daemon.Paces) *rate.Stats { return p.Stage }); got != fsys.sum() || got != bytesOf(m) {
		t.Errorf("%d bytes were counted as staged, %d read, of %d", got, fsys.sum(), bytesOf(m))
	}
	want := bytesOf(m) * int64(len(c.Nodes)-1) // each node reads the files of the others
	if got := sum("served", func(p daemon.Paces) *rate.Stats { return p.Serve }); got != want {
		t.Errorf("%d bytes were counted as served, want %d", got, want)
	}
}
