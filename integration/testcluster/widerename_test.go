package testcluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

// wideMover renames its own files between two directories, and tracks their names.
type wideMover struct {
	c     *Cluster
	r     *rand.Rand
	id    int
	dirs  [2]metadata.Ino
	files []place
	made  int
}

// place is the directory and name of a file.
type place struct {
	dir  metadata.Ino
	name string
	ino  metadata.Ino
}

func (m *wideMover) fresh() string {
	m.made++
	return fmt.Sprintf("w%d.%d", m.id, m.made)
}

// step does one operation on a random node.
func (m *wideMover) step(ctx context.Context) error {
	client := m.c.Nodes[m.r.IntN(4)].Client
	if len(m.files) < 2 || m.r.IntN(3) == 0 {
		p := place{dir: m.dirs[m.r.IntN(2)], name: m.fresh()}
		a, err := client.Create(ctx, p.dir, p.name, file)
		p.ino = a.Ino
		m.files = append(m.files, p)
		return err
	}
	f, g := &m.files[m.r.IntN(len(m.files))], &m.files[m.r.IntN(len(m.files))]
	to := place{dir: m.dirs[m.r.IntN(2)], name: m.fresh(), ino: f.ino}
	switch {
	case f == g || m.r.IntN(3) > 0:
		_, err := client.Rename(ctx, metadata.Rename{Dir: f.dir, Name: f.name, NewDir: to.dir, NewName: to.name, Flags: metadata.RenameNoReplace})
		*f = to
		return err
	case m.r.IntN(2) == 0:
		_, err := client.Rename(ctx, metadata.Rename{Dir: f.dir, Name: f.name, NewDir: g.dir, NewName: g.name, Flags: metadata.RenameExchange})
		f.ino, g.ino = g.ino, f.ino
		return err
	}
	_, err := client.Rename(ctx, metadata.Rename{Dir: f.dir, Name: f.name, NewDir: g.dir, NewName: g.name})
	g.ino = f.ino
	*f = m.files[len(m.files)-1]
	m.files = m.files[:len(m.files)-1]
	return err
}

// TestWideRenames: files are renamed within, into and out of two directories while these become wide, and replaced
// and exchanged; each ends at its last name.
func TestWideRenames(t *testing.T) {
	t.Parallel()
	const workers, steps = 8, 150
	c := Start(t, Config{SplitAt: 100})
	ctx := context.Background()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dirs := [2]metadata.Ino{c.mkdir(t, "a"), c.mkdir(t, "b")}
	movers := make([]*wideMover, workers)
	var g errgroup.Group
	for i := range movers {
		m := &wideMover{c: c, r: rand.New(rand.NewPCG(seed, uint64(i))), id: i, dirs: dirs}
		movers[i] = m
		g.Go(func() error {
			for n := range steps {
				if err := m.step(ctx); err != nil {
					return fmt.Errorf("worker %d, step %d: %w", m.id, n, err)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	want := map[metadata.Ino]int{}
	for _, m := range movers {
		for _, p := range m.files {
			want[p.dir]++
			if e, err := c.Nodes[(m.id+1)%4].Client.Lookup(ctx, p.dir, p.name); err != nil || e.Ino != p.ino {
				t.Fatalf("%s of %v is %v, %v, want %v", p.name, p.dir, e.Ino, err, p.ino)
			}
		}
	}
	for _, dir := range dirs {
		// It may have to wait for the leases on the directory to end.
		Eventually(t, fmt.Sprintf("directory %v with %d entries is wide", dir, want[dir]), func() bool { return c.epochOf(dir) != 0 })
		if names, err := listAll(ctx, c.Nodes[3].Client, dir, 64); err != nil || len(names) != want[dir] {
			t.Errorf("%d entries are listed, %v, want %d", len(names), err, want[dir])
		}
	}
	c.checkTree(t)
}

// TestWideDirectoryMoves: a wide directory can be moved, and can replace an empty wide one; it cannot be moved below
// itself, nor replaced unless it is empty.
func TestWideDirectoryMoves(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{SplitAt: 40})
	ctx := context.Background()
	client := c.Nodes[2].Client
	fill := func(dir metadata.Ino, n int) {
		t.Helper()
		for i := range n {
			if _, err := c.Nodes[i%4].Client.Create(ctx, dir, fmt.Sprint("f", i), file); err != nil {
				t.Fatal(err)
			}
		}
		Eventually(t, "it is wide", func() bool { return c.epochOf(dir) != 0 })
	}
	a, b := c.mkdir(t, "a"), c.mkdir(t, "b")
	fill(a, 80)
	fill(b, 80)
	rename := func(dir metadata.Ino, name string, to metadata.Ino, newName string) error {
		_, err := client.Rename(ctx, metadata.Rename{Dir: dir, Name: name, NewDir: to, NewName: newName})
		return err
	}
	sub, err := client.Mkdir(ctx, a, "sub", metadata.New{Mode: 0o755})
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ got, want error }{
		"over a full wide directory": {rename(metadata.RootIno, "b", metadata.RootIno, "a"), syscall.ENOTEMPTY},
		"below itself":               {rename(metadata.RootIno, "a", sub.Ino, "x"), syscall.EINVAL},
		"a file over a directory":    {rename(b, "f1", metadata.RootIno, "a"), syscall.EISDIR},
		"a directory over a file":    {rename(metadata.RootIno, "b", a, "f1"), syscall.ENOTDIR},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("rename %s = %v, want %v", what, c.got, c.want)
		}
	}
	for i := range 8 { // their names are on several nodes
		name := fmt.Sprint("d", i)
		d, err := client.Mkdir(ctx, b, name, metadata.New{Mode: 0o755})
		if err == nil {
			_, err = client.Mkdir(ctx, d.Ino, "deep", metadata.New{Mode: 0o755})
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := rename(d.Ino, "deep", metadata.RootIno, "b"); !errors.Is(err, syscall.ENOTEMPTY) {
			t.Errorf("rename of b/%s/deep over b = %v, want ENOTEMPTY", name, err)
		}
		if err := client.Rmdir(ctx, d.Ino, "deep"); err != nil {
			t.Fatal(err)
		}
		if err := rename(b, name, metadata.RootIno, "b"); !errors.Is(err, syscall.ENOTEMPTY) {
			t.Errorf("rename of b/%s over b = %v, want ENOTEMPTY", name, err)
		}
		if err := client.Rmdir(ctx, b, name); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 80 {
		if _, err := c.Nodes[i%4].Client.Unlink(ctx, b, fmt.Sprint("f", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := rename(metadata.RootIno, "a", metadata.RootIno, "b"); err != nil {
		t.Fatalf("rename over an empty wide directory: %v", err)
	}
	if err := rename(a, "sub", metadata.RootIno, "out"); err != nil {
		t.Fatalf("rename of a directory out of a wide one: %v", err)
	}
	if err := rename(metadata.RootIno, "b", sub.Ino, "in"); err != nil {
		t.Fatalf("rename of a wide directory: %v", err)
	}
	ino, err := client.Resolve(ctx, metadata.RootIno, "out/in")
	if err != nil || ino != a {
		t.Fatalf("out/in is %v, %v, want %v", ino, err, a)
	}
	if names, err := listAll(ctx, client, a, 64); err != nil || len(names) != 80 {
		t.Errorf("%d entries are listed, %v, want 80", len(names), err)
	}
	c.checkTree(t)
}

// checkTree fails the test if the records of all homes are inconsistent after pending work has ended.
func (c *Cluster) checkTree(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	var problems []string
	ok := func() bool {
		homes := make([]metadata.Inventory, len(c.Nodes))
		for i, n := range c.Nodes {
			var err error
			if homes[i], err = n.Home().Inventory(ctx); err == nil {
				err = n.Home().ReportShards(ctx)
			}
			if err != nil {
				problems = []string{err.Error()}
				return false
			}
		}
		problems = txn.Check(homes)
		return len(problems) == 0
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%d problems in the tree: %v", len(problems), problems[:min(len(problems), 10)])
		}
	}
}
