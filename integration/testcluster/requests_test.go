package testcluster

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/integration/slowpfs"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestRequestsToTheSource: what a file in a directory asks of the source's servers is to
// be found, opened and read, each once. Whether it is still what it was is known from that.
func TestRequestsToTheSource(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	const n, dirs = 300, 40
	under, at := t.TempDir(), t.TempDir()
	writeTree(t, filepath.Join(under, "set"), files(n, 60_000))
	// A client that has looked a name up keeps it: so each is asked for once, however
	// slow the machine is.
	s, err := slowpfs.Serve(slowpfs.Config{Under: under, Mounts: []string{at}, Kept: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	c := Start(t, Config{Datasets: []daemon.DatasetSpec{{Source: filepath.Join(at, "set"), Name: "set"}}})
	if ds := c.Dataset(t, 1, "set"); ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	got := s.Stats().Sum
	for kind, most := range map[slowpfs.Kind]int64{slowpfs.Open: n + dirs, slowpfs.Read: n, slowpfs.Lookup: n + dirs, slowpfs.Getattr: dirs} {
		if got[kind].Ops > most {
			t.Errorf("%d files took %d of %s, want at most %d; all: %v", n, got[kind].Ops, kind, most, got)
		}
	}
}
