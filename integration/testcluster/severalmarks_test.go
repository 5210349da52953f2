package testcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// several is a stage-in of n compressed tars, for which there is plenty of room, in which all readers are
// held up by what gate makes of their gates. each is the size of one.
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

// marked is the last mark of the part that node i reads, of the same number; false if there is none.
func (p *pass) marked(i int) (stagein.Mark, bool) {
	b, err := os.ReadFile(filepath.Join(p.Nodes[i].Job.Dirs.Store[0], "stage", "1", fmt.Sprint("mark-", i)))
	var m struct{ Mark stagein.Mark }
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	return m.Mark, err == nil
}

// goesOn kills the daemon that reads a part and has it start again. All is right then, and at most again bytes are
// read a second time.
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

// TestSeveralReaderRestarts: of several compressed tars, those that a reader has staged are not read again when its
// daemon is killed; only the up to three that it was reading then, and what it has read since its last mark.
func TestSeveralReaderRestarts(t *testing.T) {
	t.Parallel()
	const n = 60
	p, each := several(t, n, halfPacks(1500, 80_000), pack, func(g *gatedFS, each int64) {
		g.after, g.most = math.MaxInt64, each*n/4*8/9
	})
	i := p.reader(t)
	Eventually(t, "all is read that is to be", func() bool { return p.gates[i].given.Load() >= p.gates[i].most })
	Eventually(t, "most archives are whole", func() bool { m, ok := p.marked(i); return ok && m.Next-len(m.Open) >= 7 })
	p.goesOn(t, i, 4*each+markLag)
}

// markLag is more than lies between two marks, and than one is late for what is on its way.
const markLag = 7 << 20

// TestSeveralGoOn: a compressed tar of several that is being read when the daemon is killed goes on, too, from a place before the last mark.
func TestSeveralGoOn(t *testing.T) {
	t.Parallel()
	m := halfPacks(1300, 80_000)
	for name, pack := range map[string]func(*testing.T, string){"one member": pack, "frames": packFrames} {
		t.Run(name, func(t *testing.T) {
			p, each := several(t, 2, m, pack, func(g *gatedFS, each int64) { g.after = each * 4 / 5 })
			i := p.reader(t)
			Eventually(t, "most of it is recorded", func() bool {
				k, ok := p.marked(i)
				return ok && len(k.Open) == 1 && k.Open[0].From != nil && k.Open[0].From.Byte(kindOf(name)) > each*3/8
			})
			p.goesOn(t, i, each*4/5-each*3/8+1<<20)
		})
	}
}

func kindOf(name string) source.Kind {
	if name == "frames" {
		return source.TarZstd
	}
	return source.TarGzip
}
