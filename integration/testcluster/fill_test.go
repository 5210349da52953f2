package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// countedFS is a source that counts the bytes read of each file and can hold reads back.
type countedFS struct {
	source.FS
	mu    sync.Mutex
	read  map[string]int64 // guarded by mu
	holds func(path string) bool
	gate  chan struct{} // closed to release held reads
	held  atomic.Int64
}

func newCounted() *countedFS {
	return &countedFS{
		FS: source.OS{}, read: make(map[string]int64), gate: make(chan struct{}), holds: func(string) bool { return false },
	}
}

func (c *countedFS) Open(path string) (source.File, error) {
	f, err := c.FS.Open(path)
	if err != nil {
		return nil, err
	}
	return countedFile{f, c, path}, nil
}

type countedFile struct {
	source.File
	c    *countedFS
	path string
}

func (f countedFile) ReadAt(p []byte, off int64) (int, error) {
	if f.c.holds(f.path) {
		f.c.held.Add(1)
		<-f.c.gate
	}
	n, err := f.File.ReadAt(p, off)
	f.c.mu.Lock()
	f.c.read[f.path] += int64(n)
	f.c.mu.Unlock()
	return n, err
}

// sum returns the total of bytes read.
func (c *countedFS) sum() (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.read {
		n += x
	}
	return n
}

// phase returns the state of a dataset as node 0 sees it.
func (c *Cluster) phase(name string) (cluster.Dataset, bool) {
	for _, ds := range c.Nodes[0].View().Datasets {
		if ds.Name == name {
			return ds, ds.Phase == cluster.Filling || ds.Phase == cluster.Sealed
		}
	}
	return cluster.Dataset{}, false
}

// readable waits until the tree of a dataset is visible on all nodes.
func readable(t *testing.T, c *Cluster, name string) cluster.Dataset {
	t.Helper()
	var ds cluster.Dataset
	Eventually(t, name+" can be read", func() (ok bool) {
		ds, ok = c.phase(name)
		for _, n := range c.Nodes {
			ok = ok && len(n.Datasets()) > 0
		}
		return ok
	})
	return ds
}

func bytesOf(m map[string][]byte) (n int64) {
	for _, b := range m {
		n += int64(len(b))
	}
	return n
}

// readAll reads every file of a dataset on every node, each reader in its own order.
func readAll(t *testing.T, c *Cluster, ds metadata.DatasetID, m map[string][]byte, readers int) {
	t.Helper()
	paths := make([]string, 0, len(m))
	for p := range m {
		paths = append(paths, p)
	}
	var g errgroup.Group
	for i, n := range c.Nodes {
		for k := range readers {
			g.Go(func() error {
				r := rand.New(rand.NewPCG(uint64(i), uint64(k)))
				for _, at := range r.Perm(len(paths)) {
					p := paths[at]
					got, err := read(context.Background(), n, ds, p)
					if err != nil || !bytes.Equal(got, m[p]) {
						return fmt.Errorf("node %d: %s: %d bytes, %w, want %d", i, p, len(got), err, len(m[p]))
					}
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// TestReadWhileFilling: the tree is visible before the files are staged; all reads are correct at any time on any
// node, and each byte of the source is read once.
func TestReadWhileFilling(t *testing.T) {
	t.Parallel()
	m := files(300, 60_000)
	m["large"] = bytes.Repeat([]byte("0123456789abcdef"), 65<<20/16) // striped
	for _, kind := range []string{"directory", "tar"} {
		t.Run(kind, func(t *testing.T) {
			fsys := newCounted()
			src := filepath.Join(t.TempDir(), "src")
			if kind == "tar" {
				writeTar(t, src, m)
			} else {
				writeTree(t, src, m)
			}
			fsys.holds = func(path string) bool { return strings.HasSuffix(path, "/d0/e0/f0000") }
			c := Start(t, Config{Source: fsys, Datasets: []job.Dataset{{Source: src, Name: "set"}}})
			var open sync.Once
			t.Cleanup(func() { open.Do(func() { close(fsys.gate) }) })
			ds := readable(t, c, "set")
			if kind == "directory" && ds.Phase != cluster.Filling {
				t.Fatalf("the dataset is %v while a file is held back", ds.Phase)
			}
			for i, n := range c.Nodes {
				a, err := attr(n, ds.ID, "d0/e0/f0000")
				if err != nil || a.Size != int64(len(m["d0/e0/f0000"])) {
					t.Errorf("node %d: a file that is not there yet: %+v, %v", i, a, err)
				}
			}
			open.Do(func() { close(fsys.gate) })
			readAll(t, c, ds.ID, m, 1)
			ds = c.Dataset(t, 1, "set")
			if ds.Phase != cluster.Sealed {
				t.Fatalf("dataset: %+v", ds)
			}
			want := bytesOf(m)
			got := fsys.sum()
			if kind == "directory" && got != want || got != ds.SourceBytes {
				t.Errorf("%d bytes of the source were read, %d reported, the files have %d", got, ds.SourceBytes, want)
			}
			if got > want+want/100+int64(len(m))*2048 {
				t.Errorf("%d bytes of a tar were read, its files have %d", got, want)
			}
		})
	}
}

func attr(n *Node, ds metadata.DatasetID, path string) (metadata.Attr, error) {
	ctx := context.Background()
	ino, err := n.Client.Resolve(ctx, metadata.SealedIno(ds, metadata.DirPart, 0), path)
	if err != nil {
		return metadata.Attr{}, err
	}
	return n.Client.Getattr(ctx, ino)
}

// TestReadNoWait: a non-blocking read fails at once if the bytes are not staged, on this node and remotely.
func TestReadNoWait(t *testing.T) {
	t.Parallel()
	m := files(20, 60_000)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	fsys := newCounted()
	fsys.holds = func(string) bool { return true }
	c := Start(t, Config{Source: fsys, Datasets: []job.Dataset{{Source: src, Name: "set"}}})
	var open sync.Once
	t.Cleanup(func() { open.Do(func() { close(fsys.gate) }) })
	ds := readable(t, c, "set")
	each := func(want func(i int, path string, got []byte, err error)) {
		for i, n := range c.Nodes {
			for path := range m {
				a, err := attr(n, ds.ID, path)
				if err != nil {
					t.Fatal(err)
				}
				p := make([]byte, a.Size)
				_, err = n.Client.Read(t.Context(), a, p, 0, fsclient.ReadOpts{NoWait: true})
				want(i, path, p, err)
			}
		}
	}
	each(func(i int, path string, _ []byte, err error) {
		if !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("node %d reads %s, which is nowhere: %v", i, path, err)
		}
	})
	open.Do(func() { close(fsys.gate) })
	if ds = c.Dataset(t, 0, "set"); ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	each(func(i int, path string, got []byte, err error) {
		if err != nil || !bytes.Equal(got, m[path]) {
			t.Errorf("node %d reads %s: %d bytes, %v", i, path, len(got), err)
		}
	})
}

// TestManyReadersOfOneFile: a large file that is not staged is fetched once for all its readers, and a reader that
// gives up ends only its own wait.
func TestManyReadersOfOneFile(t *testing.T) {
	t.Parallel()
	m := map[string][]byte{"large": bytes.Repeat([]byte("0123456789abcdef"), 72<<20/16), "small": []byte("small")}
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	fsys := newCounted()
	fsys.holds = func(path string) bool { return true }
	c := Start(t, Config{Source: fsys, Datasets: []job.Dataset{{Source: src, Name: "set"}}})
	var open sync.Once
	t.Cleanup(func() { open.Do(func() { close(fsys.gate) }) })
	ds := readable(t, c, "set")
	a, err := attr(c.Nodes[0], ds.ID, "large")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	gaveUp := make(chan error)
	for _, n := range c.Nodes {
		go func() {
			_, err := n.Client.ReadFile(ctx, a, make([]byte, 1<<20), 0)
			gaveUp <- err
		}()
	}
	Eventually(t, "the source is asked", func() bool { return fsys.held.Load() > 0 })
	cancel()
	for range c.Nodes {
		if err := <-gaveUp; err == nil {
			t.Error("a reader that gave up has read something")
		}
	}
	var g errgroup.Group
	for i := range 16 {
		n := c.Nodes[i%len(c.Nodes)]
		g.Go(func() error {
			got, err := read(context.Background(), n, ds.ID, "large")
			if err == nil && !bytes.Equal(got, m["large"]) {
				err = errors.New("other bytes")
			}
			return err
		})
	}
	open.Do(func() { close(fsys.gate) })
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if ds := c.Dataset(t, 2, "set"); ds.Phase != cluster.Sealed || fsys.sum() != bytesOf(m) {
		t.Errorf("the dataset is %v, %d bytes of %d were read", ds.Phase, fsys.sum(), bytesOf(m))
	}
}

// TestFillResumes: a daemon killed during a fill fetches the missing files afterwards, and again only those it may
// have just written.
func TestFillResumes(t *testing.T) {
	t.Parallel()
	const most = 50_000
	m := files(200, most)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	fsys := newCounted()
	dying := &dyingFS{countedFS: fsys, dead: make(chan struct{})}
	var started atomic.Int64
	c := Start(t, Config{Datasets: []job.Dataset{{Source: src, Name: "set"}}, SourceOf: func(node int) source.FS {
		if node == 3 && started.Add(1) == 1 {
			return dying
		}
		return fsys
	}})
	var die sync.Once
	t.Cleanup(func() { die.Do(func() { close(dying.dead) }) })
	ds := readable(t, c, "set")
	mine, held := int64(0), int64(0)
	for p, b := range m {
		ino, err := c.Nodes[0].Client.Resolve(context.Background(), metadata.SealedIno(ds.ID, metadata.DirPart, 0), p)
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Nodes[0].Client.Getattr(context.Background(), ino)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) == 0 || a.Layout.Node != 3 {
			continue
		}
		if mine++; strings.HasPrefix(p, "d1/") {
			held++
		}
	}
	Eventually(t, "node 3 has all but what its source holds back", func() bool {
		return objects(c.Nodes[3]) == mine-held && dying.waits.Load() == held
	})
	c.Cut(3)
	die.Do(func() { close(dying.dead) })
	c.Kill(t, 3)
	c.Revive(t, 3)
	if ds := c.Dataset(t, 3, "set"); ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	readAll(t, c, ds.ID, m, 1)
	if got, want := fsys.sum(), bytesOf(m); got < want || got > want+most {
		t.Errorf("%d bytes of the source were read, its files have %d", got, want)
	}
}

// dyingFS is the source as seen by a node that will be killed: it cannot read some files before that.
type dyingFS struct {
	*countedFS
	dead  chan struct{} // closed when the node is killed
	waits atomic.Int64
}

func (d *dyingFS) Open(path string) (source.File, error) {
	f, err := d.countedFS.Open(path)
	if err != nil || !strings.Contains(path, "/d1/") {
		return f, err
	}
	return dyingFile{f, d}, nil
}

type dyingFile struct {
	source.File
	d *dyingFS
}

func (f dyingFile) ReadAt([]byte, int64) (int, error) {
	f.d.waits.Add(1)
	<-f.d.dead
	return 0, syscall.EIO
}

// TestSourceChangesWhileFilling: a file that changed since the scan is never read with other content; its reads fail,
// status names it, and all other files are available.
func TestSourceChangesWhileFilling(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"disappears", "grows"} {
		t.Run(what, func(t *testing.T) {
			m := files(50, 20_000)
			m["victim"] = bytes.Repeat([]byte("v"), 9000)
			src := filepath.Join(t.TempDir(), "src")
			writeTree(t, src, m)
			fsys := &changedFS{FS: source.OS{}, what: what, gate: make(chan struct{})}
			c := Start(t, Config{Source: fsys, Datasets: []job.Dataset{{Source: src, Name: "set"}}})
			var open sync.Once
			t.Cleanup(func() { open.Do(func() { close(fsys.gate) }) })
			ds := readable(t, c, "set")
			a, err := attr(c.Nodes[1], ds.ID, "victim")
			if err != nil {
				t.Fatal(err)
			}
			open.Do(func() { close(fsys.gate) })
			for i, n := range c.Nodes {
				got, err := n.Client.ReadFile(context.Background(), a, make([]byte, 9000), 0)
				if err == nil || !errors.Is(err, syscall.EIO) {
					t.Errorf("node %d read %d bytes of it, %v, want EIO", i, got, err)
				}
			}
			ds = c.Dataset(t, 0, "set")
			if ds.Phase != cluster.Sealed || ds.Missing != 1 {
				t.Errorf("the registry says %+v", ds)
			}
			for i, n := range c.Nodes {
				Eventually(t, fmt.Sprintf("node %d names the file", i), func() bool {
					all := n.Status(context.Background()).Datasets[0].Unreadable
					return len(all) > 0 && all[0].Path == "victim"
				})
			}
			delete(m, "victim")
			readAll(t, c, ds.ID, m, 1)
		})
	}
}

// changedFS is a source in which a file changes when it is first opened.
type changedFS struct {
	source.FS
	what string
	gate chan struct{} // closed when files may be opened
}

func (c *changedFS) Open(path string) (source.File, error) {
	<-c.gate
	f, err := c.FS.Open(path)
	if err != nil || filepath.Base(path) != "victim" {
		return f, err
	}
	if c.what == "disappears" {
		_ = f.Close() // read only
		return nil, syscall.ENOENT
	}
	return grownFile{f}, nil
}

type grownFile struct{ source.File }

func (f grownFile) Stat() (source.Info, error) {
	info, err := f.File.Stat()
	info.Size++
	return info, err
}

// TestLostNodeIsFetchedAgain: the surviving nodes fetch a lost node's part of a dataset from the source, each byte
// once, and it can be read meanwhile.
func TestLostNodeIsFetchedAgain(t *testing.T) {
	t.Parallel()
	m := files(120, 30_000)
	m["large"] = bytes.Repeat([]byte("0123456789abcdef"), 65<<20/16) // striped
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	fsys := newCounted()
	c := Start(t, Config{Source: fsys, Datasets: []job.Dataset{{Source: src, Name: "set"}}})
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	before := fsys.sum()
	c.Kill(t, 2)
	c.Nodes = slices.Delete(c.Nodes, 2, 3)
	readAll(t, c, ds.ID, m, 1)
	lost := fsys.sum() - before
	if share := before / 4; lost < share/2 || lost > 2*share {
		t.Errorf("%d bytes were fetched again of %d, of which a lost node had a fourth", lost, before)
	}
	readAll(t, c, ds.ID, m, 1)
	if again := fsys.sum() - before; again > lost+1<<20 {
		t.Errorf("%d bytes were fetched again, then %d", lost, again)
	}
}

// TestLostNodeOfArchive: the same holds for an archive that had to be read to find its members, also a compressed
// one.
func TestLostNodeOfArchive(t *testing.T) {
	t.Parallel()
	m := files(150, 20_000)
	dir := t.TempDir()
	plain, packed := filepath.Join(dir, "a.tar"), filepath.Join(dir, "b.tar.gz")
	writeTar(t, plain, m)
	packTar(t, plain, packed)
	fsys := newCounted()
	c := Start(t, Config{Source: fsys, Datasets: []job.Dataset{{Source: plain, Name: "plain"}, {Source: packed, Name: "packed"}}})
	var sets []cluster.Dataset
	for _, name := range []string{"plain", "packed"} {
		ds := c.Dataset(t, 0, name)
		if ds.Phase != cluster.Sealed || ds.SourceBytes != ds.SourceSize {
			t.Fatalf("dataset: %+v", ds)
		}
		sets = append(sets, ds)
	}
	before := fsys.sum()
	c.Kill(t, 2)
	c.Nodes = slices.Delete(c.Nodes, 2, 3)
	for _, ds := range sets {
		readAll(t, c, ds.ID, m, 1)
	}
	if lost, most := fsys.sum()-before, size(t, plain)+int64(len(c.Nodes))*size(t, packed); lost == 0 || lost > most {
		t.Errorf("%d bytes were fetched again, want %d at the most", lost, most)
	}
}

// TestMoreDataThanSpace: if a dataset does not fit, a part chosen by hash is staged and stays on the nodes; the
// reader's node reads the rest from the source, whole and once.
func TestMoreDataThanSpace(t *testing.T) {
	t.Parallel()
	m := files(900, 100_000)
	all := bytesOf(m)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	fsys := newCounted()
	c := Start(t, Config{Source: fsys, Capacity: all / 4 * 56 / 100, Window: 1 << 20})
	err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: src, Name: "no", Options: stagein.Options{Overflow: stagein.OverflowFail}})
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "host0 needs room for") || fsys.sum() != 0 {
		t.Errorf("with overflow=fail: %v after %d bytes, want ENOSPC that names node, need and have", err, fsys.sum())
	}
	if err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: src, Name: "set"}); err != nil {
		t.Fatal(err)
	}
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed || ds.Bytes != all {
		t.Fatalf("dataset of %d bytes: %+v", all, ds)
	}
	here := fsys.sum()
	if here < all/2 || here > all*56/100 {
		t.Errorf("%d bytes of %d are on the nodes, want somewhat less than 56 %%", here, all)
	}
	paths := slices.Sorted(maps.Keys(m))
	for epoch := range 3 {
		before := fsys.sum()
		var g errgroup.Group
		for i, n := range c.Nodes {
			g.Go(func() error {
				for k, p := range paths {
					if (k+epoch)%len(c.Nodes) != i {
						continue
					}
					if got, err := read(context.Background(), n, ds.ID, p); err != nil || !bytes.Equal(got, m[p]) {
						return fmt.Errorf("%s: %d bytes, %w, want %d", p, len(got), err, len(m[p]))
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if read := fsys.sum() - before; read > all-here || read < all-here-8<<20 {
			t.Errorf("epoch %d: %d bytes came from the source, %d are not on the nodes", epoch, read, all-here)
		}
		for i, n := range c.Nodes {
			s, err := n.Data().Space(context.Background())
			if err != nil || s.Used > s.Capacity {
				t.Errorf("node %d: %+v, %v", i, s, err)
			}
		}
	}
	hosts, err := c.Nodes[0].Client.Hosts(context.Background(), metadata.Attr{Layout: metadata.Layout{Kind: metadata.Overflow}})
	if err != nil || !slices.Equal(hosts, []string{"source"}) {
		t.Errorf("Hosts of a file that is on no node = %q, %v", hosts, err)
	}
}
