package testcluster

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// packMembers compresses a file as bgzip does, into many members and an empty one: its end does not show its size.
func packMembers(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for part := range slices.Chunk(b, 64<<10) {
		out.Write(deflated(t, part))
	}
	out.Write(deflated(t, nil))
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func deflated(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// packStream compresses a file as zstd in a pipe does: into one frame without a content size.
func packStream(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out)
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = os.WriteFile(path, out.Bytes(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fourth returns every fourth file, from i on.
func fourth(m map[string][]byte, i int) map[string][]byte {
	part := make(map[string][]byte)
	for k, path := range slices.Sorted(maps.Keys(m)) {
		if k%4 == i {
			part[path] = m[path]
		}
	}
	return part
}

// halfPacks returns n files of up to size bytes, half of which compress well.
func halfPacks(n, size int) map[string][]byte {
	m := make(map[string][]byte, n)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range n {
		b := make([]byte, size/2+r.IntN(size/2))
		for k := range len(b) / 2 {
			b[k] = byte(r.Uint32())
		}
		m[fmt.Sprintf("d%d/f%04d", i%9, i)] = b
	}
	return m
}

// wantHalf checks that some files of a dataset are on the nodes and some in the source, in all parts of the archive.
func wantHalf(t *testing.T, c *Cluster, name string, m map[string][]byte) {
	t.Helper()
	for _, ds := range c.Nodes[0].Status(context.Background()).Datasets {
		if ds.Name != name {
			continue
		}
		if ds.InSource == nil || ds.InSource.Files < int64(len(m)/5) || ds.InSource.Files > int64(len(m)*4/5) {
			t.Errorf("of %d files there stay in the source: %+v", len(m), ds.InSource)
			return
		}
		sum := int64(0)
		for _, n := range c.Nodes {
			sum += objects(n)
		}
		if sum != int64(len(m))-ds.InSource.Files {
			t.Errorf("%d files are on the nodes, and %d in the source, of %d", sum, ds.InSource.Files, len(m))
		}
	}
}

// wantFourth checks that a node of four reads its part of a dataset's files.
func wantFourth(t *testing.T, n *Node, ds metadata.DatasetID, m map[string][]byte) {
	t.Helper()
	wantAll(t, n, ds, fourth(m, int(n.Job.Self)))
}

// wantAll checks that a node reads all of m.
func wantAll(t *testing.T, n *Node, ds metadata.DatasetID, m map[string][]byte) {
	t.Helper()
	for path, want := range m {
		if got, err := read(context.Background(), n, ds, path); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("node %d: %s: %d bytes, %v, want %d", n.Job.Self, path, len(got), err, len(want))
		}
	}
}

// packOne compresses a file in place into one gzip member, as tar czf does.
func packOne(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, deflated(t, b), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestPackedMoreThanSpace: a compressed tar without enough room fails: before a byte is copied if it states its size,
// else when the room is used up. The error says what to do, nothing stays on the nodes, and no node ever exceeds its
// capacity.
func TestPackedMoreThanSpace(t *testing.T) {
	t.Parallel()
	const capacity = 2 << 20
	m := make(map[string][]byte)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 120 {
		b := make([]byte, 100_000) // half of each compresses well
		for k := range len(b) / 2 {
			b[k] = byte(r.Uint32())
		}
		m[fmt.Sprintf("f%03d", i)] = b
	}
	for name, c := range map[string]struct {
		pack     func(*testing.T, string)
		early    bool
		overflow stagein.Overflow
		says     []string
	}{
		"of known size":       {packZstd, true, stagein.OverflowSource, []string{"needs room for", "has 2.0 MiB", "a plain tar or a zip archive", "unpack=no"}},
		"and overflow=fail":   {packZstd, true, stagein.OverflowFail, []string{"needs room for", "has 2.0 MiB", "a plain tar or a zip archive"}},
		"of unknown size":     {packStream, false, stagein.OverflowSource, []string{" needs room for at least ", " and had 2.0 MiB when the stage-in began (", "unpack=no"}},
		"with restart points": {packMembers, false, stagein.OverflowSource, []string{" needs room for at least ", " and had 2.0 MiB when the stage-in began (", "unpack=no"}},
		// The need of several archives is known only if each was read far enough.
		"and several": {packStream, false, stagein.OverflowSource, []string{"2.0 MiB when the stage-in began", "unpack=no"}},
	} {
		t.Run(name, func(t *testing.T) {
			src := filepath.Join(t.TempDir(), "set.tar.packed")
			if name == "and several" {
				src = filepath.Join(filepath.Dir(src), "*")
				for i := range 4 {
					part, files, pack := filepath.Join(filepath.Dir(src), fmt.Sprint(i)), fourth(m, i), packMembers
					if i == 2 {
						files["large"], pack = make([]byte, 20<<20), c.pack
					}
					writeTar(t, part, files)
					pack(t, part)
				}
			} else {
				writeTar(t, src, m)
				c.pack(t, src)
			}
			fsys := newCounted()
			tc := Start(t, Config{Source: fsys, Capacity: capacity})
			du := watchDisks(t, tc)
			spec := job.Dataset{Source: src, Name: "set", Options: stagein.Options{Overflow: c.overflow}}
			if err := tc.Nodes[0].StageIn(context.Background(), spec); err == nil {
				t.Error("it was staged")
			}
			ds := tc.Dataset(t, 0, "set")
			for _, want := range append(c.says, "no space left on device") {
				if ds.Phase != cluster.Failed || !strings.Contains(ds.Error, want) {
					t.Errorf("dataset %v: %s: want it to say %q", ds.Phase, ds.Error, want)
				}
			}
			for i, n := range tc.Nodes {
				Eventually(t, fmt.Sprintf("nothing is left on node %d", i), func() bool { return objects(n) == 0 })
			}
			most, read := du(), fsys.sum()
			if most > capacity {
				t.Errorf("the objects of a node took %d bytes, of a capacity of %d", most, capacity)
			}
			if c.early && (most > 0 || read > 64<<10) {
				t.Errorf("%d bytes were read, and up to %d on a node, before it was refused", read, most)
			}
		})
	}
}

// TestOverflowAtOnce: a restarted daemon reads overflow files from the source as soon as it knows the dataset.
func TestOverflowAtOnce(t *testing.T) {
	t.Parallel()
	m := halfPacks(200, 60_000)
	src := filepath.Join(t.TempDir(), "set.tar")
	writeTar(t, src, m)
	c := Start(t, Config{Capacity: 2 << 20, Window: 1 << 20})
	if err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: src, Name: "set"}); err != nil {
		t.Fatal(err)
	}
	ds := c.Dataset(t, 0, "set")
	wantHalf(t, c, "set", m)
	for i := range c.Nodes {
		c.Kill(t, i)
		n := c.Revive(t, i)
		Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
		wantFourth(t, n, ds.ID, m)
	}
}
