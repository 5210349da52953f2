package testcluster

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/integration/slowpfs"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// TestPrefetchOfRuns: of a tar that does not fit, adjacent files that are read soon are fetched by one request to the
// source, by the source's own count.
func TestPrefetchOfRuns(t *testing.T) {
	NeedFUSE(t)
	const n, size = 640, 66_000 // a tar of smaller files would not be scanned
	content := func(i int) []byte { return bytes.Repeat([]byte(sampleName(i)), size/len(sampleName(i))) }
	m := make(map[string][]byte, n)
	for i := range n {
		m[sampleName(i)] = content(i)
	}
	under, at := t.TempDir(), t.TempDir()
	writeTar(t, filepath.Join(under, "set.tar"), m)
	pfs, err := slowpfs.Serve(slowpfs.Config{Under: under, Mounts: []string{at}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pfs.Close(); err != nil {
			t.Error(err)
		}
	})
	plan := accessplan.Plan{Dataset: "set", Kind: accessplan.Chunk, Seed: 1, Ranks: trainRanks, Group: 4}
	x := &training{t: t, files: n, content: content, order: plan}
	x.start(Config{
		Capacity: n * size / trainRanks * 56 / 100,
		Datasets: []job.Dataset{{Source: filepath.Join(at, "set.tar"), Name: "set"}},
	}, plan)
	files := x.overflow()
	if files < n/3 || files > n/2 {
		t.Fatalf("%d of %d files overflow", files, n)
	}
	requests := int64(0)
	for e := range 2 {
		// The source's client drops its cache when the file is opened.
		f, err := os.Open(filepath.Join(at, "set.tar"))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		before := pfs.Stats().Sum[slowpfs.Read]
		x.epoch(e)
		now := pfs.Stats().Sum[slowpfs.Read]
		requests += now.Ops - before.Ops
		t.Logf("epoch %d: %d requests for %d files of the source, %d bytes; %+v", e, now.Ops-before.Ops, files, now.Bytes-before.Bytes, x.engines[0].State())
	}
	if requests > files { // of 2*files; an idle machine needs a sixth of these
		t.Errorf("%d requests for %d files of the source", requests, 2*files)
	}
}

// overflow returns the number of files that are on no node.
func (x *training) overflow() (n int64) {
	store, _ := x.c.Nodes[0].Table(x.c.Dataset(x.t, 0, "set").ID)
	err := store.(accessplan.Files).Files(func(_ string, _ uint32, _ string, a metadata.Attr) bool {
		if a.Layout.Kind == metadata.Overflow {
			n++
		}
		return true
	})
	if err != nil {
		x.t.Fatal(err)
	}
	return n
}
