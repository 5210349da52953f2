package testcluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// mortalFS counts the bytes read. If it is mortal, reads beyond the first eighth of a file block until it dies.
type mortalFS struct {
	source.FS
	read  *atomic.Int64
	waits chan struct{} // receives a value when a read blocks; room for one. nil is immortal
	dead  chan struct{} // closed when reads fail
}

func (m mortalFS) Open(path string) (source.File, error) {
	f, err := m.FS.Open(path)
	if err != nil {
		return nil, err
	}
	return mortalFile{f, m}, nil
}

type mortalFile struct {
	source.File
	m mortalFS
}

func (f mortalFile) ReadAt(p []byte, off int64) (int, error) {
	if info, err := f.Stat(); f.m.waits != nil && (err != nil || off > info.Size/8) {
		select {
		case f.m.waits <- struct{}{}:
		default:
		}
		<-f.m.dead
		return 0, syscall.EIO
	}
	n, err := f.File.ReadAt(p, off)
	f.m.read.Add(int64(n))
	return n, err
}

// scanCluster starts a job in which node 3 stops in the middle of a scan. die fails the blocked reads.
func scanCluster(t *testing.T) (c *Cluster, m map[string][]byte, size int64, read *atomic.Int64, die func()) {
	t.Helper()
	src := filepath.Join(t.TempDir(), "set.tar")
	m = files(300, 20_000)
	writeTar(t, src, m)
	info, err := source.OS{}.Lstat(src)
	if err != nil {
		t.Fatal(err)
	}
	mortal := mortalFS{source.OS{}, &atomic.Int64{}, make(chan struct{}, 1), make(chan struct{})}
	immortal := mortalFS{FS: source.OS{}, read: mortal.read}
	die = sync.OnceFunc(func() { close(mortal.dead) })
	var born atomic.Bool
	c = Start(t, Config{SourceOf: func(i int) source.FS {
		if i == 3 && !born.Swap(true) {
			return mortal
		}
		return immortal
	}})
	t.Cleanup(die)
	spec := job.Dataset{Source: src, Name: "set", Options: stagein.Options{Fill: stagein.Order{Kind: stagein.OrderSource}}}
	if _, err := daemon.NewCtl(c.Nodes[3].Job.CtlSocket()).StageIn(context.Background(), spec); err != nil {
		t.Fatal(err)
	}
	<-mortal.waits
	return c, m, info.Size, mortal.read, die
}

// came checks that the dataset is complete on all nodes, and that each byte of its files was read once.
func came(t *testing.T, c *Cluster, m map[string][]byte, size int64, read *atomic.Int64) {
	t.Helper()
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed || ds.Attempt == 0 || ds.Files != int64(len(m)) {
		t.Fatalf("dataset: %+v", ds)
	}
	for i, n := range c.Nodes {
		Eventually(t, fmt.Sprintf("the dataset is visible on node %d", i), func() bool { return len(n.Datasets()) == 1 })
		for p, want := range m {
			Eventually(t, fmt.Sprintf("node %d reads %s", i, p), func() bool {
				got, err := readOf(n, ds, p)
				if err == nil && !bytes.Equal(got, want) {
					t.Fatalf("node %d: %s: %d bytes, want %d", i, p, len(got), len(want))
				}
				return err == nil
			})
		}
	}
	const page = 4 << 10 // of each header, in both scans
	if n, most := read.Load(), size+int64(2*len(m)*page)+1<<20; n > most {
		t.Errorf("%d bytes were read of %d, want at most %d", n, size, most)
	}
	if ds.SourceBytes < size || ds.SourceBytes > read.Load()+128<<10 {
		t.Errorf("%d bytes were read of %d, %d counted", read.Load(), size, ds.SourceBytes)
	}
}

func readOf(n *Node, ds cluster.Dataset, path string) ([]byte, error) {
	return read(context.Background(), n, ds.ID, path)
}

// TestScanRestarts: a daemon that is killed during a scan repeats it, and the dataset becomes visible.
func TestScanRestarts(t *testing.T) {
	t.Parallel()
	c, m, size, read, die := scanCluster(t)
	c.Cut(3) // it must not notify others while it closes
	die()
	c.Kill(t, 3)
	c.Revive(t, 3)
	came(t, c, m, size, read)
}

// TestScanTakenOver: another node continues the scan of a lost node, which knows this when it returns.
func TestScanTakenOver(t *testing.T) {
	t.Parallel()
	c, m, size, read, die := scanCluster(t)
	c.Cut(3)
	if ds := c.Dataset(t, 0, "set"); ds.Phase != cluster.Sealed || ds.Coordinator == 3 {
		t.Fatalf("dataset: %+v", ds)
	}
	c.Mend(3)
	Eventually(t, "node 3 is back", func() bool { return len(c.Nodes[0].View().Map.Up()) == 4 })
	die()
	came(t, c, m, size, read)
}

// stuckFS is a source whose first read hangs until it is freed.
type stuckFS struct {
	source.FS
	began *atomic.Bool
	waits chan struct{} // closed when the first read hangs
	freed chan struct{}
}

func (s stuckFS) Open(path string) (source.File, error) {
	f, err := s.FS.Open(path)
	if err != nil {
		return nil, err
	}
	return stuckFile{f, s}, nil
}

type stuckFile struct {
	source.File
	s stuckFS
}

func (f stuckFile) ReadAt(p []byte, off int64) (int, error) {
	if !f.s.began.Swap(true) {
		close(f.s.waits)
		<-f.s.freed
	}
	return f.File.ReadAt(p, off)
}

// stuckScan is a stage-in whose source hangs for the scanning node until free is called. Another node has restarted
// the stage-in, and the first one reads a part of it, without knowing yet that its own attempt, which works in dir,
// was superseded.
func stuckScan(t *testing.T) (p *led, dir string, free func()) {
	t.Helper()
	p = &led{&pass{m: files(200, 60_000)}, plainTar}
	for range 4 {
		p.gates = append(p.gates, p.gate())
	}
	stuck := stuckFS{p.gates[leads], new(atomic.Bool), make(chan struct{}), make(chan struct{})}
	free = sync.OnceFunc(func() { close(stuck.freed) })
	p.Cluster = Start(t, Config{SourceOf: func(i int) source.FS {
		if i == leads {
			return stuck
		}
		return p.gates[i]
	}})
	t.Cleanup(p.open)
	t.Cleanup(free)
	src := filepath.Join(t.TempDir(), "set.tar")
	writeTar(t, src, p.m)
	info, err := os.Stat(src)
	if err != nil {
		t.Fatal(err)
	}
	p.size = info.Size()
	if _, err := daemon.NewCtl(p.Nodes[leads].Job.CtlSocket()).StageIn(context.Background(), job.Dataset{Source: src, Name: "set"}); err != nil {
		t.Fatal(err)
	}
	<-stuck.waits
	p.Cut(leads)
	Eventually(t, "another leads, and files are read", func() bool {
		ds := p.Nodes[0].View().Datasets
		return len(ds) == 1 && ds[0].Coordinator == 0 && ds[0].Reading && shares(p.Nodes[2]) > 0
	})
	p.Mend(leads)
	Eventually(t, "the node is back", func() bool { return len(p.Nodes[0].View().Map.Up()) == 4 })
	p.Cut(2) // its part goes to the stuck node
	stage := filepath.Join(p.Nodes[leads].Job.Dirs.Store[0], "stage", "1")
	Eventually(t, "it reads a part", func() bool {
		found, err := filepath.Glob(filepath.Join(stage, "records-2.try-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found) == 1
	})
	dir = filepath.Join(stage, "attempt-0")
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	return p, dir, free
}

// TestScannerIsStuck: a node whose scan was stuck until another had restarted the stage-in keeps its data of the new
// attempt.
func TestScannerIsStuck(t *testing.T) {
	t.Parallel()
	p, dir, free := stuckScan(t)
	free()
	Eventually(t, "its scan has given way", func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	})
	p.came(t, p.size+slack, others(2)...)
}

// TestScannerStaysStuck: the dataset is available on all nodes, including the stuck one, while the first scan still
// hangs.
func TestScannerStaysStuck(t *testing.T) {
	t.Parallel()
	p, _, free := stuckScan(t)
	p.came(t, p.size+slack, others(2)...)
	free()
	p.came(t, p.size+slack, others(2)...)
}

// hungFS is a source that blocks reads of files whose names begin with "hung" until it is freed.
type hungFS struct {
	source.FS
	hang  *atomic.Int64 // the number of hanging reads
	freed chan struct{}
}

func (s hungFS) Open(path string) (source.File, error) {
	f, err := s.FS.Open(path)
	if err != nil || !strings.HasPrefix(filepath.Base(path), "hung") {
		return f, err
	}
	return hungFile{f, s}, nil
}

type hungFile struct {
	source.File
	s hungFS
}

func (f hungFile) ReadAt(p []byte, off int64) (int, error) {
	f.s.hang.Add(1)
	<-f.s.freed
	return f.File.ReadAt(p, off)
}

// TestStuckScansLeaveTheirTurn: a node whose source hangs in as many stage-ins as it leads concurrently leads another
// one once others have restarted those.
func TestStuckScansLeaveTheirTurn(t *testing.T) {
	t.Parallel()
	const n = 4 // as many as a node leads concurrently
	hung := hungFS{source.OS{}, new(atomic.Int64), make(chan struct{})}
	c := Start(t, Config{SourceOf: func(i int) source.FS {
		if i == leads {
			return hung
		}
		return source.OS{}
	}})
	t.Cleanup(sync.OnceFunc(func() { close(hung.freed) })) // before the daemons are closed
	dir, m := t.TempDir(), files(20, 3000)
	ctl := daemon.NewCtl(c.Nodes[leads].Job.CtlSocket())
	begin := func(name string) {
		src := filepath.Join(dir, name+".tar")
		writeTar(t, src, m)
		if _, err := ctl.StageIn(context.Background(), job.Dataset{Source: src, Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		begin(fmt.Sprint("hung", i))
	}
	Eventually(t, "all hang", func() bool { return hung.hang.Load() == n })
	c.Cut(leads)
	Eventually(t, "others lead", func() bool {
		all := c.Nodes[0].View().Datasets
		for _, ds := range all {
			if ds.Coordinator == leads || ds.Phase != cluster.Sealed {
				return false
			}
		}
		return len(all) == n
	})
	c.Mend(leads)
	Eventually(t, "the node is back", func() bool { return len(c.Nodes[0].View().Map.Up()) == 4 })
	begin("next")
	if ds := c.Dataset(t, leads, "next"); ds.Phase != cluster.Sealed || ds.Coordinator != leads {
		t.Errorf("a stage-in after those that hang: %+v", ds)
	}
	if n := hung.hang.Load(); n != 4 {
		t.Errorf("%d reads have hung, want 4", n)
	}
}
