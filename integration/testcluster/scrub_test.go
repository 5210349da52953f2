package testcluster

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestScrub: a bit that flips on a drive after the stage-in is detected, and the file is refetched before it is read.
func TestScrub(t *testing.T) {
	t.Parallel()
	m := files(20, 30_000)
	m["victim"] = bytes.Repeat([]byte("a pattern that no other file has."), 1000)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	c := Start(t, Config{
		Datasets: []job.Dataset{{Source: src, Name: "set"}},
		Timing:   daemon.Timing{Report: 30 * time.Millisecond, Down: 4 * time.Second, Sweep: 20 * time.Millisecond, Scrub: 20 * time.Millisecond},
	})
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	c.mustSpoil(t, m["victim"])
	Eventually(t, "the scrub has repaired the file", func() bool {
		n := int64(0)
		for _, x := range c.Nodes {
			n += x.Status(context.Background()).Scrub.Repaired
		}
		return n == 1
	})
	for i, x := range c.Nodes {
		if s := x.Status(context.Background()).Scrub; s.Bad > 0 {
			t.Errorf("node %d: %+v", i, s)
		}
	}
	readAll(t, c, ds.ID, m, 1)
}
