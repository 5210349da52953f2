package testcluster

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// onDisk returns the disk usage of a node's objects, in bytes.
func onDisk(n *Node) (sum int64, err error) {
	for _, dir := range n.Job.Dirs.Store {
		err := filepath.WalkDir(filepath.Join(dir, "objects"), func(_ string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info, err := e.Info()
			if os.IsNotExist(err) {
				return nil
			}
			if err == nil {
				sum += info.Sys().(*syscall.Stat_t).Blocks * 512
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// watchDisks samples the nodes' disks until stop is called, which returns the peak usage of one node's objects.
func watchDisks(t *testing.T, c *Cluster) (stop func() int64) {
	t.Helper()
	var most int64
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, n := range c.Nodes {
				took, err := onDisk(n)
				if err != nil {
					t.Errorf("du of node %d: %v", n.Job.Self, err)
				}
				most = max(most, took)
			}
			select {
			case <-tick.C:
			case <-over:
				return
			}
		}
	})
	stop = sync.OnceValue(func() int64 {
		close(over)
		wg.Wait()
		return most
	})
	t.Cleanup(func() { stop() }) // also if the test ends early
	return stop
}

// TestSmallMembersOfMoreThanSpace: of a tar of small files, each of which takes a whole page, a part stays in the
// source if there is no room for all pages. Every file can be read in every epoch, and a node's objects never exceed
// its capacity.
func TestSmallMembersOfMoreThanSpace(t *testing.T) {
	t.Parallel()
	const n, page = 3000, 4096
	m := make(map[string][]byte, n)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		b := make([]byte, 200+r.IntN(1500))
		for k := range b {
			b[k] = byte(r.Uint32())
		}
		m[fmt.Sprintf("class%d/f%04d", i%10, i)] = b
	}
	src := filepath.Join(t.TempDir(), "small.tar")
	writeTar(t, src, m)
	const capacity = n * page / 4 * 56 / 100
	if bytesOf(m) > 4*capacity {
		t.Fatalf("%d bytes of files do not fit, it is the pages that are not to", bytesOf(m))
	}
	fsys := newCounted()
	c := Start(t, Config{Source: fsys, Capacity: capacity, Window: 1 << 20})
	du := watchDisks(t, c)
	err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: src, Name: "set"})
	if err != nil {
		t.Fatal(err)
	}
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed || ds.Files != n || ds.Bytes != bytesOf(m) {
		t.Fatalf("dataset: %+v", ds)
	}
	for epoch := range 3 {
		before := fsys.sum()
		var g errgroup.Group
		for i, node := range c.Nodes {
			g.Go(func() error {
				k := 0
				for path, want := range m {
					if k++; (k+epoch)%len(c.Nodes) != i && epoch > 0 {
						continue
					}
					if got, err := read(context.Background(), node, ds.ID, path); err != nil || !bytes.Equal(got, want) {
						return fmt.Errorf("%s: %d bytes, %w, want %d", path, len(got), err, len(want))
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if fsys.sum() == before {
			t.Errorf("epoch %d: nothing was read of the source, though not all pages fit", epoch)
		}
	}
	if most := du(); most > capacity || most < capacity/2 {
		t.Errorf("the objects of a node take up to %d bytes, of a capacity of %d", most, capacity)
	}
}

// TestNamesThatDifferByCase: names that differ by case are different files, for every kind of source.
func TestNamesThatDifferByCase(t *testing.T) {
	t.Parallel()
	m := map[string][]byte{"a/README": []byte("upper"), "a/readme": []byte("lower"), "A/readme": []byte("other"), "a/Readme": []byte("both")}
	dir := t.TempDir()
	tree, archive := filepath.Join(dir, "tree"), filepath.Join(dir, "set.tar")
	writeTree(t, tree, m)
	writeTar(t, archive, m)
	c := Start(t, Config{Nodes: 2})
	for name, src := range map[string]string{"tree": tree, "tar": archive} {
		if err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: src, Name: name}); err != nil {
			t.Fatal(err)
		}
		ds := c.Dataset(t, 1, name)
		if ds.Phase != cluster.Sealed || ds.Files != int64(len(m)) {
			t.Errorf("%s: %+v", name, ds)
		}
		for path, want := range m {
			if got, err := read(context.Background(), c.Nodes[1], ds.ID, path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %s: %q, %v, want %q", name, path, got, err, want)
			}
		}
	}
	// Two datasets whose names differ by case are distinct, and the same name twice is refused.
	if err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: tree, Name: "TREE"}); err != nil {
		t.Error(err)
	}
	if err := c.Nodes[1].StageIn(context.Background(), job.Dataset{Source: archive, Name: "tree"}); err == nil {
		t.Error("a second dataset of one name is taken")
	}
}
