package testcluster

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// several stages in n compressed tars, with plenty of room, in which all readers are held up as gate configures their
// gates. each is the size of one tar.
func several(t *testing.T, n int, m map[string][]byte, pack func(*testing.T, string), gate func(g *gatedFS, each int64)) (p *pass, each int64) {
	t.Helper()
	p = &pass{m: m, done: make(chan error, 1)}
	dir := t.TempDir()
	paths := slices.Sorted(maps.Keys(m))
	for i := range n {
		part := make(map[string][]byte)
		for k := i; k < len(paths); k += n {
			part[paths[k]] = m[paths[k]]
		}
		src := filepath.Join(dir, fmt.Sprintf("train-%02d.tar.packed", i))
		writeTar(t, src, part)
		pack(t, src)
		info, err := os.Stat(src)
		if err != nil {
			t.Fatal(err)
		}
		p.size += info.Size()
	}
	each = p.size / int64(n)
	for range 4 {
		g := &gatedFS{FS: source.OS{}, gate: make(chan struct{}), dead: make(chan struct{}), bytes: &p.bytes}
		gate(g, each)
		p.gates = append(p.gates, g)
	}
	p.Cluster = Start(t, Config{SourceOf: func(i int) source.FS { return p.gates[i] }})
	t.Cleanup(p.open) // before the daemons are closed
	go func() {
		p.done <- p.Nodes[leads].StageIn(context.Background(), job.Dataset{Source: filepath.Join(dir, "train-*.tar.packed"), Name: "set"})
	}()
	return p, each
}

// restart kills the daemon that reads the source, cut off or not, and starts it again.
func (p *pass) restart(t *testing.T, i int) {
	t.Helper()
	close(p.gates[i].dead) // it cannot end during a read
	p.Kill(t, i)
	p.gates[i] = &gatedFS{FS: source.OS{}, gate: make(chan struct{}), dead: make(chan struct{}), bytes: &p.bytes}
	p.Revive(t, i)
}

// goesOn kills the daemon that reads a part and restarts it. It checks that the result is right, and that at most
// again bytes were read a second time.
func (p *pass) goesOn(t *testing.T, i int, again int64) {
	t.Helper()
	p.Cut(i)
	p.restart(t, i)
	p.open()
	if err := <-p.done; err != nil {
		t.Fatal(err)
	}
	ds := p.Dataset(t, leads, "set")
	if ds.Phase != cluster.Sealed || ds.Files != int64(len(p.m)) || ds.Bytes != bytesOf(p.m) {
		t.Fatalf("dataset: %+v", ds)
	}
	if got := p.bytes.Load(); got < p.size || got > p.size+again {
		t.Errorf("%d bytes were read of %d, want at most %d again, not %d", got, p.size, again, got-p.size)
	}
	for k, n := range p.Nodes {
		Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
		wantAll(t, n, ds.ID, fourth(p.m, k))
	}
	Eventually(t, "each file is there once", func() bool {
		sum := int64(0)
		for _, n := range p.Nodes {
			sum += objects(n)
		}
		return sum == int64(len(p.m))
	})
}

// TestSeveralReaderRestarts: a daemon that reads several compressed tars is killed and restarts. It reads its own
// part again, and no other part is read again.
func TestSeveralReaderRestarts(t *testing.T) {
	t.Parallel()
	const n = 12
	p, each := several(t, n, halfPacks(300, 80_000), packMembers, func(g *gatedFS, each int64) {
		g.after, g.most = math.MaxInt64, each*n/4*8/9
	})
	i := p.reader(t)
	Eventually(t, "all is read that is to be", func() bool { return p.gates[i].given.Load() >= p.gates[i].most })
	p.goesOn(t, i, each*n/4+1<<20)
}
