package testcluster

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// gatedFS is a node's view of a source: while closed, it returns bytes only of the first eighth of a file; it counts
// all bytes.
type gatedFS struct {
	source.FS
	gate  chan struct{} // closed to open the gate
	dead  chan struct{} // closed when blocked reads fail; nil is never
	once  sync.Once
	bytes *atomic.Int64
	after int64 // bytes of a file returned while closed, besides reads of up to 4 KiB; 0 is an eighth
	most  int64 // bytes of all files returned while closed; 0 is no limit
	given atomic.Int64
}

func (g *gatedFS) open() { g.once.Do(func() { close(g.gate) }) }

func (g *gatedFS) Open(path string) (source.File, error) {
	f, err := g.FS.Open(path)
	return gatedFile{f, g}, err
}

type gatedFile struct {
	source.File
	g *gatedFS
}

func (f gatedFile) ReadAt(p []byte, off int64) (int, error) {
	over := f.g.most > 0 && f.g.given.Load() >= f.g.most
	if info, err := f.Stat(); err == nil && (over || off > max(f.g.after, info.Size/8)) && (f.g.after == 0 || len(p) > 4096) {
		select {
		case <-f.g.gate:
		case <-f.g.dead:
			return 0, syscall.EIO
		}
	}
	n, err := f.File.ReadAt(p, off)
	f.g.bytes.Add(int64(n))
	f.g.given.Add(int64(n))
	return n, err
}

// pass is a single-pass stage-in of an archive, held up on all nodes.
type pass struct {
	*Cluster
	m     map[string][]byte
	size  int64 // of the archive
	bytes atomic.Int64
	gates []*gatedFS
	done  chan error
}

const leads = 3 // the node that leads the stage-in

// acrossEnds names a large file that spans the beginnings of the last two of four regions. In tar order, four fifths
// of the other files precede it, so that every node gets something before readers are held up, and the parts of nodes
// 0 and 1 have files of their own.
const acrossEnds = "d3/large"

// beginPass starts the pass, and waits until some data has arrived.
func beginPass(t *testing.T, ext string) *pass {
	t.Helper()
	return beginPassIn(t, ext, Config{})
}

func beginPassIn(t *testing.T, ext string, c Config) *pass {
	t.Helper()
	p := &pass{m: files(200, 60_000), done: make(chan error, 1)}
	p.m[acrossEnds] = bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
	for range 4 {
		p.gates = append(p.gates, &gatedFS{FS: source.OS{}, gate: make(chan struct{}), bytes: &p.bytes})
	}
	c.SourceOf = func(i int) source.FS { return p.gates[i] }
	p.Cluster = Start(t, c)
	t.Cleanup(p.open) // before the daemons are closed
	src := p.archive(t, ext)
	writeTar(t, src, p.m)
	if ext == packedTar {
		pack(t, src)
	}
	info, err := os.Stat(src)
	if err != nil {
		t.Fatal(err)
	}
	p.size = info.Size()
	go func() {
		p.done <- p.Nodes[leads].StageIn(context.Background(), job.Dataset{Source: src, Name: "set"})
	}()
	Eventually(t, "bytes have come in", func() bool {
		if ext == packedTar { // an unpacker may need much of it before its first output
			return p.bytes.Load() > p.size/16
		}
		return objects(p.Nodes[0])+objects(p.Nodes[2]) > 0
	})
	return p
}

// archive returns the name of an archive that, if it has a single reader, is not read by the leading node.
func (p *pass) archive(t *testing.T, ext string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; ; i++ {
		if src := filepath.Join(dir, fmt.Sprint("set", i, ext)); p.Nodes[leads].View().Map.FileOwner(src) != leads {
			return src
		}
	}
}

// pack compresses a file slightly, in place.
func pack(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.NoCompression) // the level is valid
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (p *pass) open() {
	for _, g := range p.gates {
		g.open()
	}
}

// reader returns the last node, other than the leader, that reads the archive.
func (p *pass) reader(t *testing.T) int {
	t.Helper()
	found := -1
	Eventually(t, "a node reads", func() bool {
		for i := range p.Nodes {
			if i != leads && shares(p.Nodes[i]) > 0 {
				found = i
			}
		}
		return found >= 0
	})
	return found
}

// lost waits until the leading node declares node i lost.
func (p *pass) lost(t *testing.T, i int) {
	t.Helper()
	Eventually(t, "the node is given up", func() bool {
		n, _ := p.Nodes[leads].View().Map.Node(metadata.NodeID(i))
		return n.State == cluster.Down
	})
}

// settle opens all gates and checks the result: each file is on the nodes once, and at most again bytes were read
// more than once.
func (p *pass) settle(t *testing.T, again int64, on ...int) {
	t.Helper()
	p.open()
	if err := <-p.done; err != nil {
		t.Fatal(err)
	}
	ds := p.Dataset(t, leads, "set")
	if ds.Phase != cluster.Sealed || ds.Files != int64(len(p.m)) {
		t.Fatalf("dataset: %+v", ds)
	}
	for _, i := range on {
		n := p.Nodes[i]
		Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
		for path, want := range p.m {
			if got, err := read(context.Background(), n, ds.ID, path); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("node %d: %s: %d bytes, %v, want %d", i, path, len(got), err, len(want))
			}
		}
	}
	Eventually(t, "each file is there once", func() bool {
		sum := int64(0)
		for _, i := range on {
			sum += objects(p.Nodes[i])
		}
		return sum == int64(len(p.m))
	})
	if got := p.bytes.Load(); got < p.size || got > p.size+again {
		t.Errorf("%d bytes read of %d, want at most %d again", got, p.size, again)
	}
	if got := p.bytes.Load(); ds.SourceBytes < p.size || ds.SourceBytes > got {
		t.Errorf("the registry says that %d bytes of %d were read, it was %d", ds.SourceBytes, p.size, got)
	}
}

// slack allows for unused read-ahead of the nodes, and headers.
const slack = 2 << 20

const (
	plainTar  = ".tar"
	packedTar = ".tar.gz"
)

// TestPassReaderRestarts: a daemon that reads a part of an archive is killed and restarts; it reads that part again,
// and no other part is read again.
func TestPassReaderRestarts(t *testing.T) {
	t.Parallel()
	for _, ext := range []string{plainTar, packedTar} {
		t.Run(ext, func(t *testing.T) {
			p := beginPass(t, ext)
			i := p.reader(t)
			p.Cut(i)
			go p.gates[i].open() // it cannot end during a read
			p.Kill(t, i)
			p.Revive(t, i)
			again := p.size/4 + slack
			if ext == packedTar {
				again = p.size
			}
			p.settle(t, again, 0, 1, 2, 3)
		})
	}
}

// TestPassReaderKnowsNoMap: a restarted daemon is asked to read its part before it knows which nodes are up. It does
// not treat them as lost.
func TestPassReaderKnowsNoMap(t *testing.T) {
	t.Parallel()
	p := beginPass(t, plainTar)
	i := p.reader(t)
	heard := make(chan struct{})
	hear := sync.OnceFunc(func() { close(heard) })
	p.Cut(i)
	go p.gates[i].open() // it cannot end during a read
	p.Kill(t, i)
	for k := range p.Nodes {
		if k != leads {
			p.Tamper(k, func(to int, conn net.Conn) net.Conn {
				if (k == i) != (to == i) && to != leads {
					return dumbConn{conn, heard}
				}
				return conn
			})
		}
	}
	was := p.bytes.Load()
	p.Revive(t, i)
	t.Cleanup(hear) // before the node stops, which waits for its messages
	Eventually(t, "it is asked to read", func() bool { return shares(p.Nodes[i]) > 0 })
	time.Sleep(200 * time.Millisecond) // its whole part would take less
	if n := p.bytes.Load() - was; n > 0 {
		t.Errorf("%d bytes are read by one that knows no node", n)
	}
	hear()
	p.settle(t, p.size/4+slack, 0, 1, 2, 3)
}

// dumbConn blocks writes until it is released.
type dumbConn struct {
	net.Conn
	heard chan struct{}
}

func (c dumbConn) Write(p []byte) (int, error) {
	<-c.heard
	return c.Conn.Write(p)
}

// TestPassReaderIsLost: a node that reads a part of an archive is lost for good. Another node reads that part, and
// the survivors fetch the lost node's files.
func TestPassReaderIsLost(t *testing.T) {
	t.Parallel()
	for _, ext := range []string{plainTar, packedTar} {
		t.Run(ext, func(t *testing.T) {
			p := beginPass(t, ext)
			i := p.reader(t)
			p.Cut(i)
			p.lost(t, i)
			var on []int
			for k := range p.Nodes {
				if k != i {
					on = append(on, k)
				}
			}
			again := 2*p.size/4 + p.size/8 + slack
			if ext == packedTar {
				again = 4 * p.size // one by each replacement
			}
			p.settle(t, again, on...)
		})
	}
}

// TestPassReaderIsLostLate: the same, when it takes some time until the node is declared lost, as in production.
func TestPassReaderIsLostLate(t *testing.T) {
	t.Parallel()
	p := beginPassIn(t, plainTar, Config{Timing: daemon.Timing{Report: 30 * time.Millisecond, Down: 12 * time.Second}})
	i := p.reader(t)
	p.Cut(i)
	p.lost(t, i)
	p.settle(t, 2*p.size/4+p.size/8+slack, others(i)...)
}

// TestPassReaderComesBack: a node is declared lost while it reads a part of an archive, and returns before the others
// are done. Its continued work is ignored.
func TestPassReaderComesBack(t *testing.T) {
	t.Parallel()
	p := beginPass(t, plainTar)
	i := p.reader(t)
	p.Cut(i)
	p.lost(t, i)
	p.Mend(i)
	Eventually(t, "the node is back", func() bool { return len(p.Nodes[leads].View().Map.Up()) == 4 })
	p.settle(t, p.size+slack, 0, 1, 2, 3)
}

// TestPassHolderRestarts: a daemon that has finished its part and reported its boundary is killed and restarts while
// the others read.
func TestPassHolderRestarts(t *testing.T) {
	t.Parallel()
	p := beginPass(t, plainTar)
	const i = 1
	p.gates[0].open()
	p.gates[i].open()
	Eventually(t, "its part is done", func() bool { return shares(p.Nodes[i]) == 0 && shares(p.Nodes[0]) == 0 })
	p.Kill(t, i)
	p.Revive(t, i)
	p.settle(t, p.size/4+slack, 0, 1, 2, 3)
}

// TestPassHolderIsLost: the same, but it does not return.
func TestPassHolderIsLost(t *testing.T) {
	t.Parallel()
	p := beginPass(t, plainTar)
	const i = 1
	p.gates[0].open()
	p.gates[i].open()
	Eventually(t, "its part is done", func() bool { return shares(p.Nodes[i]) == 0 && shares(p.Nodes[0]) == 0 })
	p.Cut(i)
	p.lost(t, i)
	p.settle(t, 2*p.size/4+slack, 0, 2, 3)
	if got := fmt.Sprint(p.Nodes[leads].View().Map.Up()); got != "[0 2 3]" {
		t.Errorf("%s are up", got)
	}
}
