package testcluster

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// packedFourths writes the files of m in four compressed tars, and returns a pattern for them
// and their size.
func packedFourths(t *testing.T, m map[string][]byte) (pattern string, size int64) {
	t.Helper()
	dir := t.TempDir()
	for i := range 4 {
		src := filepath.Join(dir, fmt.Sprint("shard-", i, ".tar.gz"))
		writeTar(t, src, fourth(m, i))
		packMembers(t, src)
		info, err := os.Stat(src)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	return filepath.Join(dir, "shard-*.tar.gz"), size
}

// TestPackedSpillSeveral: several compressed tars for which the nodes have no room are read by
// all nodes, each byte once; what has no room stays in all of them, and all files are read right,
// by a daemon that has started again too. No node ever has more than its capacity.
func TestPackedSpillSeveral(t *testing.T) {
	t.Parallel()
	const capacity = 3 << 20
	m := halfPacks(400, 60_000)
	pattern, size := packedFourths(t, m)
	fsys := newCounted()
	c := Start(t, Config{Source: fsys, Capacity: capacity, Window: 1 << 20})
	du := watchDisks(t, c)
	if err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: pattern, Name: "set"}); err != nil {
		t.Fatal(err)
	}
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed || ds.Files != int64(len(m)) || ds.Bytes != bytesOf(m) {
		t.Fatalf("dataset: %+v", ds)
	}
	if n := fsys.sum(); n < size || n > size+64<<10 || ds.SourceBytes != n {
		t.Errorf("%d bytes were read of %d, the registry says %d", n, size, ds.SourceBytes)
	}
	wantHalf(t, c, "set", m)
	if most := du(); most > capacity || most < capacity/2 {
		t.Errorf("the objects of a node took up to %d bytes, of a capacity of %d", most, capacity)
	}
	if r := c.verify(t, daemon.VerifySpec{Name: "set"}); r.Bad > 0 || r.Files == 0 {
		t.Errorf("verify: %+v", r)
	}
	c.Kill(t, 2)
	c.Revive(t, 2)
	for _, n := range c.Nodes {
		Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
		wantFourth(t, n, ds.ID, m)
	}
}

// TestPackedSpillSelected: so it is with what is selected of them, and what one of them has that
// cannot be read to its end.
func TestPackedSpillSelected(t *testing.T) {
	t.Parallel()
	m := halfPacks(500, 60_000)
	pattern, size := packedFourths(t, m)
	if err := os.Truncate(filepath.Join(filepath.Dir(pattern), "shard-3.tar.gz"), size/8); err != nil {
		t.Fatal(err)
	}
	c := Start(t, Config{Capacity: 2 << 20, Window: 1 << 20})
	o := stagein.Options{OnError: stagein.OnErrorSkip, Exclude: []source.Name{"f*7"}}
	if err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: pattern, Name: "set", Options: o}); err != nil {
		t.Fatal(err)
	}
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed || ds.Files >= int64(len(m))*9/10 || ds.Files < int64(len(m)*7/10) || ds.Skipped != 1 {
		t.Fatalf("dataset: %+v", ds)
	}
	for i, n := range c.Nodes[:3] { // whose shards are whole
		Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
		part := fourth(m, i)
		maps.DeleteFunc(part, func(path string, _ []byte) bool { return path[len(path)-1] == '7' })
		wantAll(t, n, ds.ID, part)
	}
}

// spillingSeveral is a stage-in of several compressed tars for which there is no room, which is held
// up in the middle of each, after something has gone back to the source of one that is read by i.
func spillingSeveral(t *testing.T, capacity int64) (p *pass, i int) {
	t.Helper()
	p, i = heldUp(t, capacity, func(p *pass) (string, int64) { return packedFourths(t, p.m) }, 4)
	Eventually(t, "something has gone back to the source", func() bool { return kept(t, p.Nodes[i], fmt.Sprint("ebb-", i)) })
	p.Cut(i)
	return p, i
}

// TestPackedSpillOwnerIsLost: so it is with a node that is to have some of one such tar, while
// another reads that.
func TestPackedSpillOwnerIsLost(t *testing.T) {
	t.Parallel()
	const capacity = 3 << 20
	p, reader := spilling(t, capacity, packMembers)
	i := 0
	if reader == i {
		i = 1
	}
	p.Cut(i)
	p.lost(t, i)
	p.spilt(t, capacity, others(i)...)
}

// TestPackedSpillSeveralReaderRestarts: a daemon that reads some of several such tars is killed
// after something has gone back to the source; it goes on, with the room that it had.
func TestPackedSpillSeveralReaderRestarts(t *testing.T) {
	t.Parallel()
	const capacity = 3 << 20
	p, i := spillingSeveral(t, capacity)
	p.restart(t, i)
	p.spilt(t, capacity, 0, 1, 2, 3)
	wantHalf(t, p.Cluster, "set", p.m)
}

// TestPackedSpillSeveralReaderIsLost: a node that reads some of several such tars is lost for good.
// Another reads them, with the room that the lost one has used.
func TestPackedSpillSeveralReaderIsLost(t *testing.T) {
	t.Parallel()
	const capacity = 3 << 20
	p, i := spillingSeveral(t, capacity)
	p.lost(t, i)
	p.spilt(t, capacity, others(i)...)
}
