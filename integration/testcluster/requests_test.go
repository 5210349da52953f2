package testcluster

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/integration/slowpfs"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// TestRequestsToTheSource: to stage a file of a directory, the source's servers serve one lookup, one open and one
// read. These also show whether the file has changed since the scan.
func TestRequestsToTheSource(t *testing.T) {
	t.Parallel()
	const n, dirs = 300, 40
	under := t.TempDir()
	writeTree(t, filepath.Join(under, "set"), files(n, 60_000))
	got := requests(t, under, "set")
	for kind, most := range map[slowpfs.Kind]int64{slowpfs.Open: n + dirs, slowpfs.Read: n, slowpfs.Lookup: n + dirs, slowpfs.Getattr: dirs} {
		if got[kind].Ops > most {
			t.Errorf("%d files took %d of %s, want at most %d; all: %v", n, got[kind].Ops, kind, most, got)
		}
	}
}

// requests stages the tree name of the directory under, and returns the requests that the source served.
func requests(t *testing.T, under, name string) slowpfs.Counts {
	t.Helper()
	at, s := slowly(t, under)
	c := Start(t, Config{Datasets: []job.Dataset{{Source: filepath.Join(at, name), Name: "set"}}})
	if ds := c.Dataset(t, 1, "set"); ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	return s.Stats().Sum
}

// slowly serves the directory under through slowpfs at another path.
func slowly(t *testing.T, under string) (at string, s *slowpfs.Server) {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	at = t.TempDir()
	// The client caches names, so that each is looked up once on any machine.
	s, err := slowpfs.Serve(slowpfs.Config{Under: under, Mounts: []string{at}, Kept: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return at, s
}

// TestExactReads: of a source behind FUSE, a read fetches exactly what it requests, also at the file's end; other
// sources read whole pages.
func TestExactReads(t *testing.T) {
	t.Parallel()
	under := t.TempDir()
	data := bytes.Repeat([]byte("0123456789"), 2000)
	if err := os.WriteFile(filepath.Join(under, "a"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	at, s := slowly(t, under)
	for dir, want := range map[string]bool{at: true, under: false} {
		f, err := source.OS{}.Open(filepath.Join(dir, "a"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got := source.Exact(f); got != want {
			t.Fatalf("%s: exact is %v", dir, got)
		}
		before := s.Stats().Sum[slowpfs.Read].Bytes
		sum := int64(0)
		for _, r := range []struct{ off, n int64 }{{512, 512}, {12_345, 1}, {19_999, 1}, {0, 5000}} {
			p := make([]byte, r.n)
			if n, err := f.ReadAt(p, r.off); int64(n) != r.n || err != nil || !bytes.Equal(p, data[r.off:r.off+r.n]) {
				t.Fatalf("%s: %d bytes at %d: %d, %v", dir, r.n, r.off, n, err)
			}
			sum += r.n
		}
		if n, err := f.ReadAt(make([]byte, 512), 19_800); n != 200 || err != io.EOF {
			t.Errorf("%s: at the end: %d, %v", dir, n, err)
		}
		if got := s.Stats().Sum[slowpfs.Read].Bytes - before; want && got != sum+200 || !want && got != 0 {
			t.Errorf("%s: %d bytes were fetched", dir, got)
		}
	}
}
