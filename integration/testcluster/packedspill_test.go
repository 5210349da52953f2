package testcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// packFrames compresses a file in place into frames that say how large they are, each of 1 MiB.
func packFrames(t *testing.T, path string) {
	t.Helper()
	packEach(t, path, 1<<20)
}

// halfPacks is n files of up to size bytes, half of which packs well.
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

// wantHalf checks that some files of a dataset are on the nodes and some in the source,
// in all parts of the archive.
func wantHalf(t *testing.T, c *Cluster, name string, m map[string][]byte) {
	t.Helper()
	for _, ds := range c.Nodes[0].Status(context.Background()).Datasets {
		if ds.Name != name {
			continue
		}
		if ds.Spilled == nil || ds.Spilled.Files < int64(len(m)/5) || ds.Spilled.Files > int64(len(m)*4/5) {
			t.Errorf("of %d files there stay in the source: %+v", len(m), ds.Spilled)
			return
		}
		sum := int64(0)
		for _, n := range c.Nodes {
			sum += objects(n)
		}
		if sum != int64(len(m))-ds.Spilled.Files {
			t.Errorf("%d files are on the nodes, and %d in the source, of %d", sum, ds.Spilled.Files, len(m))
		}
	}
}

// TestPackedSpill: of a compressed tar for which the nodes have no room, and which has places
// in its middle to begin at, what has no room stays in the source. It is read once to be
// staged; all files are read right, through a mount too; no node ever has more than its
// capacity; those that are here and those that are not mix; the dataset shows its true size.
func TestPackedSpill(t *testing.T) {
	t.Parallel()
	const capacity = 3 << 20
	m := halfPacks(400, 60_000)
	for name, pack := range map[string]func(*testing.T, string){"members of unknown size": packMembers, "frames of known size": packFrames, "one member": packOne} {
		t.Run(name, func(t *testing.T) {
			src := filepath.Join(t.TempDir(), "set.tar.packed")
			writeTar(t, src, m)
			pack(t, src)
			info, err := os.Stat(src)
			if err != nil {
				t.Fatal(err)
			}
			fsys := newCounted()
			c := Start(t, Config{Source: fsys, Capacity: capacity, Window: 1 << 20})
			du := watchDisks(t, c)
			if err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: src, Name: "set"}); err != nil {
				t.Fatal(err)
			}
			ds := c.Dataset(t, 0, "set")
			if ds.Phase != cluster.Sealed || ds.Files != int64(len(m)) || ds.Bytes != bytesOf(m) {
				t.Fatalf("dataset: %+v", ds)
			}
			if n := fsys.sum(); n < info.Size() || n > info.Size()+64<<10 || ds.SourceBytes != n {
				t.Errorf("%d bytes were read of %d, the registry says %d", n, info.Size(), ds.SourceBytes)
			}
			wantHalf(t, c, "set", m)
			for _, n := range c.Nodes {
				Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
				wantFourth(t, n, ds.ID, m)
			}
			if r := c.verify(t, daemon.VerifySpec{Name: "set"}); r.Bad > 0 || r.Files == 0 {
				t.Errorf("verify: %+v", r)
			}
			dir := filepath.Join(c.Mount(t, 1)[0].Data, "set")
			var st syscall.Statfs_t
			if err := syscall.Statfs(dir, &st); err != nil || int64(st.Blocks)*st.Bsize < bytesOf(m) {
				t.Errorf("statfs: %d bytes, %v, want %d", int64(st.Blocks)*st.Bsize, err, bytesOf(m))
			}
			for path, want := range m {
				if got, err := os.ReadFile(filepath.Join(dir, path)); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("the mount: %s: %d bytes, %v, want %d", path, len(got), err, len(want))
				}
			}
			if most := du(); most > capacity || most < capacity/2 {
				t.Errorf("the objects of a node took up to %d bytes, of a capacity of %d", most, capacity)
			}
		})
	}
}

// wantFourth has a node of four read its part of the files of a dataset.
func wantFourth(t *testing.T, n *Node, ds metadata.DatasetID, m map[string][]byte) {
	t.Helper()
	wantAll(t, n, ds, fourth(m, int(n.Job.Self)))
}

// wantAll has a node read all of m.
func wantAll(t *testing.T, n *Node, ds metadata.DatasetID, m map[string][]byte) {
	t.Helper()
	for path, want := range m {
		if got, err := read(context.Background(), n, ds, path); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("node %d: %s: %d bytes, %v, want %d", n.Job.Self, path, len(got), err, len(want))
		}
	}
}

// kept reports whether a node has a file of that name for a dataset that is staged.
func kept(t *testing.T, n *Node, name string) (has bool) {
	t.Helper()
	err := filepath.WalkDir(n.dir, func(_ string, e fs.DirEntry, err error) error {
		has = has || err == nil && e.Name() == name
		return nil // it may go while it is looked for
	})
	if err != nil {
		t.Fatal(err)
	}
	return has
}

// spilling is a stage-in of a compressed tar, made by pack, for which there is no room, which is held up
// in its middle, after something has gone back to the source.
func spilling(t *testing.T, capacity int64, pack func(*testing.T, string)) (p *pass, reader int) {
	t.Helper()
	p, reader = heldUp(t, capacity, func(p *pass) (string, int64) { return p.packed(t, pack) }, 1)
	Eventually(t, "something has gone back to the source", func() bool { return kept(t, p.Nodes[reader], "ebb-0") })
	Eventually(t, "there is a mark", func() bool { return kept(t, p.Nodes[reader], "mark-0") })
	return p, reader
}

// packed makes a compressed tar of what the job has.
func (p *pass) packed(t *testing.T, pack func(*testing.T, string)) (src string, size int64) {
	t.Helper()
	src = p.archive(t, packedTar)
	writeTar(t, src, p.m)
	pack(t, src)
	info, err := os.Stat(src)
	if err != nil {
		t.Fatal(err)
	}
	return src, info.Size()
}

// restart kills the daemon that reads, cut off or not, and has it start again.
func (p *pass) restart(t *testing.T, i int) {
	t.Helper()
	close(p.gates[i].dead) // it cannot end while it reads
	p.Kill(t, i)
	p.gates[i] = p.half()
	p.Revive(t, i)
}

// heldUp is a stage-in that each of readers of what made makes is held up with, after three fourths of
// its part.
func heldUp(t *testing.T, capacity int64, made func(*pass) (src string, size int64), readers int64) (p *pass, reader int) {
	t.Helper()
	p = &pass{m: halfPacks(500, 60_000), done: make(chan error, 1)}
	for range 4 {
		p.gates = append(p.gates, p.half())
	}
	p.Cluster = Start(t, Config{Capacity: capacity, SourceOf: func(i int) source.FS { return p.gates[i] }})
	t.Cleanup(p.open) // before the daemons are closed
	var src string
	src, p.size = made(p)
	for _, g := range p.gates {
		g.after = p.size / readers * 3 / 4
	}
	go func() {
		p.done <- p.Nodes[leads].StageIn(context.Background(), job.Dataset{Source: src, Name: "set"})
	}()
	return p, p.reader(t)
}

// unmarked is how many objects there are, on other nodes than i, of what the first try to read
// part 0, on node i, has stored after its last mark.
func (p *pass) unmarked(t *testing.T, i int) (n int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.Nodes[i].Job.Dirs.Store[0], "stage", "1", "mark-0"))
	var m struct{ Mark stagein.Mark }
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil || len(m.Mark.Kept) == 0 {
		t.Fatalf("the mark: %+v, %v", m, err)
	}
	for _, k := range others(i) {
		for _, o := range p.Nodes[k].objectFiles(t) {
			ino, err := strconv.ParseUint(filepath.Base(o), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			if k := m.Mark.Kept[0]; metadata.Ino(ino).Part() == k.Number && metadata.Ino(ino).Seq() > k.Kept {
				n++
			}
		}
	}
	return n
}

// half is a gate in the middle.
func (p *pass) half() *gatedFS {
	return &gatedFS{FS: source.OS{}, gate: make(chan struct{}), dead: make(chan struct{}), bytes: &p.bytes, after: p.size * 3 / 4}
}

// spilt checks what there is then.
func (p *pass) spilt(t *testing.T, capacity int64, on ...int) {
	t.Helper()
	p.open()
	if err := <-p.done; err != nil {
		t.Fatal(err)
	}
	ds := p.Dataset(t, leads, "set")
	if ds.Phase != cluster.Sealed || ds.Files != int64(len(p.m)) || ds.Bytes != bytesOf(p.m) {
		t.Fatalf("dataset: %+v", ds)
	}
	if got := p.bytes.Load(); got > 2*p.size+slack {
		t.Errorf("%d bytes were read of %d", got, p.size)
	}
	for _, i := range on {
		n := p.Nodes[i]
		Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
		wantFourth(t, n, ds.ID, p.m)
		if took, err := onDisk(n); err != nil || took > capacity || took < capacity/4 {
			t.Errorf("the objects of node %d take %d bytes, %v, of a capacity of %d", i, took, err, capacity)
		}
	}
}

// TestPackedSpillReaderRestarts: the daemon that reads such a tar is killed after something
// has gone back to the source, and goes on with it; what was stored after its last mark is
// removed before.
func TestPackedSpillReaderRestarts(t *testing.T) {
	t.Parallel()
	const capacity = 3 << 20
	p, i := spilling(t, capacity, packMembers)
	Eventually(t, "all is read that is to be", func() bool { return p.bytes.Load() >= p.size*3/4 })
	Eventually(t, "something is stored after the mark", func() bool { return p.unmarked(t, i) > 0 })
	p.Cut(i)
	p.restart(t, i)
	t.Cleanup(p.open) // before the daemon is closed
	Eventually(t, "what nobody has recorded gives its room back", func() bool { return p.unmarked(t, i) == 0 })
	p.spilt(t, capacity, 0, 1, 2, 3)
	wantHalf(t, p.Cluster, "set", p.m)
}

// TestPackedSpillReaderIsLost: the node that reads such a tar is lost for good. Another reads
// it, has the room of what the lost one has stored, and finds none for what that one was to have.
func TestPackedSpillReaderIsLost(t *testing.T) {
	t.Parallel()
	const capacity = 3 << 20
	p, i := spilling(t, capacity, packMembers)
	p.Cut(i)
	p.lost(t, i)
	p.spilt(t, capacity, others(i)...)
}
