package testcluster

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// spoil flips a bit of every object on the nodes' drives whose beginning occurs in want, and returns their number.
func (c *Cluster) spoil(t *testing.T, want []byte) (spoilt int) {
	t.Helper()
	for _, n := range c.Nodes {
		for _, o := range n.objectFiles(t) {
			b, err := os.ReadFile(o)
			if err != nil {
				t.Fatal(err)
			}
			if len(b) == 0 || !bytes.Contains(want, b[:min(len(b), 4096)]) || len(b) > len(want) {
				continue
			}
			b[len(b)/2] ^= 4
			f, err := os.OpenFile(o, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(b[len(b)/2:][:1], int64(len(b)/2)); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			spoilt++
		}
	}
	return spoilt
}

func (c *Cluster) mustSpoil(t *testing.T, want []byte) {
	t.Helper()
	if c.spoil(t, want) == 0 {
		t.Fatal("no object has it")
	}
}

// objectFiles returns the files in which node n keeps data.
func (n *Node) objectFiles(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, dir := range n.Job.Dirs.Store {
		m, err := filepath.Glob(filepath.Join(dir, "objects/*/*"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m...)
	}
	return all
}

func (c *Cluster) verify(t *testing.T, s dataset.VerifySpec) dataset.VerifyResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := c.Nodes[0].Verify(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestVerifyMends: a bit that flipped on a drive is detected, named and refetched, for every kind of source, and a
// process that read it before sees the right bytes.
func TestVerifyMends(t *testing.T) {
	t.Parallel()
	m := files(40, 30_000)
	m["whole"] = bytes.Repeat([]byte("what is on one node."), 2000)
	m["striped"] = bytes.Repeat([]byte("an odd period for a chunk."), 65<<20/26)
	dir := t.TempDir()
	writeTree(t, filepath.Join(dir, "tree"), m)
	writeTar(t, filepath.Join(dir, "a.tar"), m)
	small := maps.Clone(m)
	delete(small, "striped")
	writeTar(t, filepath.Join(dir, "small.tar"), small)
	packTar(t, filepath.Join(dir, "small.tar"), filepath.Join(dir, "b.tar.gz"))
	want := map[string]map[string][]byte{"tree": m, "plain": m, "packed": small}
	specs := []job.Dataset{
		{Source: filepath.Join(dir, "tree"), Name: "tree"},
		{Source: filepath.Join(dir, "a.tar"), Name: "plain"},
		{Source: filepath.Join(dir, "b.tar.gz"), Name: "packed"},
	}
	c := Start(t, Config{Datasets: specs})
	ms := c.Mount(t, 0, 1)
	for _, s := range specs {
		ds := c.Dataset(t, 0, s.Name)
		if ds.Phase != cluster.Sealed {
			t.Fatalf("dataset: %+v", ds)
		}
		if r := c.verify(t, dataset.VerifySpec{Name: s.Name}); r.Bad != 0 || r.Repaired != 0 || r.Files != int64(len(want[s.Name])) {
			t.Fatalf("%s before: %+v", s.Name, r)
		}
	}
	c.mustSpoil(t, m["whole"])
	c.mustSpoil(t, m["striped"])
	for _, s := range specs {
		bad := []string{"striped", "whole"}
		if want[s.Name]["striped"] == nil {
			bad = bad[1:]
		}
		for _, p := range bad {
			if b, err := os.ReadFile(filepath.Join(ms[1].Data, s.Name, p)); err != nil || bytes.Equal(b, m[p]) {
				t.Fatalf("%s of %s was not spoilt, or %v", p, s.Name, err)
			}
		}
		if r := c.verify(t, dataset.VerifySpec{Name: s.Name, Keep: true}); r.Bad != int64(len(bad)) || !slices.Equal(named(r), bad) {
			t.Errorf("%s is only looked at: %+v", s.Name, r)
		}
		if r := c.verify(t, dataset.VerifySpec{Name: s.Name}); r.Bad != 0 || r.Repaired != int64(len(bad)) || !slices.Equal(named(r), bad) {
			t.Errorf("%s is mended: %+v", s.Name, r)
		}
		if r := c.verify(t, dataset.VerifySpec{Name: s.Name}); r.Bad != 0 || r.Repaired != 0 {
			t.Errorf("%s afterwards: %+v", s.Name, r)
		}
		for _, p := range bad {
			for _, mt := range ms {
				if b, err := os.ReadFile(filepath.Join(mt.Data, s.Name, p)); err != nil || !bytes.Equal(b, m[p]) {
					t.Errorf("node %d: %s of %s is not what it was: %v", mt.Node, p, s.Name, err)
				}
			}
		}
	}
}

// TestVerifyStripedOfPacked: of a striped file of a compressed tar each node checks its own chunks, and reports a
// damaged one by its place.
func TestVerifyStripedOfPacked(t *testing.T) {
	t.Parallel()
	m := files(20, 30_000)
	m["striped"] = bytes.Repeat([]byte("an odd period for a chunk."), 65<<20/26)
	dir := t.TempDir()
	writeTar(t, filepath.Join(dir, "a.tar"), m)
	packTar(t, filepath.Join(dir, "a.tar"), filepath.Join(dir, "a.tar.gz"))
	c := Start(t, Config{Datasets: []job.Dataset{{Source: filepath.Join(dir, "a.tar.gz"), Name: "set"}}})
	ds := c.Dataset(t, 0, "set")
	if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Unsummed != 0 || r.Files != int64(len(m)) {
		t.Fatalf("before: %+v", r)
	}
	for i, n := range c.Nodes {
		(&Cluster{Nodes: c.Nodes[i : i+1]}).mustSpoil(t, m["striped"])
		r := c.verify(t, dataset.VerifySpec{Name: "set", Keep: true})
		if r.Bad != 1 || !slices.Equal(named(r), []string{"striped"}) || r.BadFiles[0].Host != n.Job.Hosts[n.Job.Self] ||
			!strings.Contains(r.BadFiles[0].Error, " of the object: has checksum") {
			t.Errorf("node %d has a flipped bit: %+v", i, r)
		}
		if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Repaired != 1 {
			t.Errorf("node %d is mended: %+v", i, r)
		}
	}
	if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Repaired != 0 {
		t.Errorf("afterwards: %+v", r)
	}
	readAll(t, c, ds.ID, m, 1)
}

// named returns the bad files by name.
func named(r dataset.VerifyResult) (names []string) {
	for _, f := range r.BadFiles {
		names = append(names, string(f.Path))
	}
	slices.Sort(names)
	return names
}

// TestVerifyLostNode: only the lost node's files that others have refetched are compared, and nothing is bad.
func TestVerifyLostNode(t *testing.T) {
	t.Parallel()
	m := files(60, 30_000)
	m["striped"] = bytes.Repeat([]byte("an odd period for a chunk."), 65<<20/26)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	c := Start(t, Config{Datasets: []job.Dataset{{Source: src, Name: "set"}}})
	ds := c.Dataset(t, 0, "set")
	c.Kill(t, 2)
	c.Nodes = slices.Delete(c.Nodes, 2, 3)
	readAll(t, c, ds.ID, m, 1)
	if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Files != int64(len(m)) {
		t.Errorf("verify: %+v", r)
	}
	c.mustSpoil(t, m["striped"])
	if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Repaired != 1 {
		t.Errorf("verify of what was spoilt: %+v", r)
	}
	readAll(t, c, ds.ID, m, 1)
}
