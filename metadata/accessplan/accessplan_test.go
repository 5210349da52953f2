package accessplan

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestEpochAsTorch compares with the output of PyTorch 1.13: for each rank
//
//	s = DistributedSampler(range(n), num_replicas=ranks, rank=r, shuffle=..., seed=..., drop_last=...)
//	s.set_epoch(epoch); list(s)
//
// and for Random and Loader the consecutive epochs of RandomSampler(range(n), generator=g)
// and of DataLoader(range(n), shuffle=True, generator=g), where g.manual_seed(seed).
func TestEpochAsTorch(t *testing.T) {
	for _, tt := range []struct {
		plan     Plan
		n, epoch int
		want     [][]int
	}{
		{plan: Plan{Kind: Torch, Seed: 0, Ranks: 2, Shuffle: true, DropLast: false}, n: 10, epoch: 0, want: [][]int{{4, 7, 3, 0, 6}, {1, 5, 9, 8, 2}}},
		{plan: Plan{Kind: Torch, Seed: 7, Ranks: 3, Shuffle: true, DropLast: false}, n: 11, epoch: 2, want: [][]int{{4, 8, 0, 10}, {9, 3, 1, 6}, {2, 7, 5, 4}}},
		{plan: Plan{Kind: Torch, Seed: 7, Ranks: 3, Shuffle: true, DropLast: true}, n: 11, epoch: 2, want: [][]int{{4, 8, 0}, {9, 3, 1}, {2, 7, 5}}},
		{plan: Plan{Kind: Torch, Seed: 0, Ranks: 4, Shuffle: false, DropLast: false}, n: 11, epoch: 0, want: [][]int{{0, 4, 8}, {1, 5, 9}, {2, 6, 10}, {3, 7, 0}}},
		{plan: Plan{Kind: Torch, Seed: 0, Ranks: 4, Shuffle: false, DropLast: true}, n: 11, epoch: 0, want: [][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
		{plan: Plan{Kind: Torch, Seed: 1, Ranks: 5, Shuffle: true, DropLast: false}, n: 2, epoch: 1, want: [][]int{{0}, {1}, {0}, {1}, {0}}},
		{plan: Plan{Kind: Torch, Seed: 1, Ranks: 7, Shuffle: false, DropLast: false}, n: 3, epoch: 0, want: [][]int{{0}, {1}, {2}, {0}, {1}, {2}, {0}}},
		{plan: Plan{Kind: Torch, Seed: 1, Ranks: 5, Shuffle: true, DropLast: true}, n: 2, epoch: 0, want: [][]int{{}, {}, {}, {}, {}}},
		{plan: Plan{Kind: Random, Seed: 5, Ranks: 1, Shuffle: true, DropLast: false}, n: 9, epoch: 0, want: [][]int{{8, 7, 4, 6, 5, 1, 2, 0, 3}}},
		{plan: Plan{Kind: Random, Seed: 5, Ranks: 1, Shuffle: true, DropLast: false}, n: 9, epoch: 1, want: [][]int{{6, 5, 8, 4, 2, 3, 0, 1, 7}}},
		{plan: Plan{Kind: Random, Seed: 5, Ranks: 1, Shuffle: true, DropLast: false}, n: 9, epoch: 2, want: [][]int{{8, 3, 4, 6, 1, 7, 0, 2, 5}}},
		{plan: Plan{Kind: Loader, Seed: 5, Ranks: 1, Shuffle: true, DropLast: false}, n: 9, epoch: 0, want: [][]int{{7, 6, 8, 0, 1, 4, 5, 3, 2}}},
		{plan: Plan{Kind: Loader, Seed: 5, Ranks: 1, Shuffle: true, DropLast: false}, n: 9, epoch: 1, want: [][]int{{3, 8, 2, 6, 1, 0, 7, 4, 5}}},
		{plan: Plan{Kind: Loader, Seed: 5, Ranks: 1, Shuffle: true, DropLast: false}, n: 9, epoch: 2, want: [][]int{{5, 2, 4, 8, 3, 1, 0, 7, 6}}},
		{plan: Plan{Kind: Loader, Seed: 6, Ranks: 1, Shuffle: true, DropLast: false}, n: 9, epoch: 0, want: [][]int{{6, 5, 0, 2, 3, 7, 1, 4, 8}}},
		{plan: Plan{Kind: Loader, Seed: 6, Ranks: 1, Shuffle: true, DropLast: false}, n: 9, epoch: 1, want: [][]int{{6, 2, 0, 5, 1, 3, 8, 4, 7}}},
	} {
		x, err := tt.plan.Epoch(tt.epoch, tt.n)
		if err != nil {
			t.Errorf("%v: %v", &tt.plan, err)
			continue
		}
		seen := map[int]bool{}
		for rank, want := range tt.want {
			got := make([]int, x.Len(rank))
			for pos := range got {
				got[pos] = x.At(rank, pos)
				seen[got[pos]] = true
				if r, p, ok := x.Find(got[pos]); !ok || x.At(r, p) != got[pos] || r+p*len(tt.want) > rank+pos*len(tt.want) {
					t.Errorf("%v: file %d is read by rank %d at %d, Find says %d at %d, %v", &tt.plan, got[pos], rank, pos, r, p, ok)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, %d files, epoch %d: rank %d reads %v, want %v", &tt.plan, tt.n, tt.epoch, rank, got, want)
			}
		}
		for i := range tt.n {
			if _, _, ok := x.Find(i); ok != seen[i] {
				t.Errorf("%v: Find(%d) = %v, want %v", &tt.plan, i, ok, seen[i])
			}
		}
		if x.Len(len(tt.want)) != 0 || x.Len(-1) != 0 {
			t.Errorf("%v: a rank that does not exist reads files", &tt.plan)
		}
	}
}

// TestChunksAsPython: the file contains the output of bivouac.torch.ChunkShuffleSampler; the Python tests use it, too.
func TestChunksAsPython(t *testing.T) {
	b, err := os.ReadFile("testdata/chunks.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		N, Epoch int
		Plan     Plan
		Want     [][]int
	}
	if err := json.Unmarshal(b, &all); err != nil || len(all) == 0 {
		t.Fatalf("%d cases, %v", len(all), err)
	}
	for _, tt := range all {
		x, err := tt.Plan.Epoch(tt.Epoch, tt.N)
		if err != nil {
			t.Errorf("%v: %v", &tt.Plan, err)
			continue
		}
		for rank, want := range tt.Want {
			got := make([]int, x.Len(rank))
			for pos := range got {
				got[pos] = x.At(rank, pos)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, %d files, epoch %d: rank %d reads %v, want %v", &tt.Plan, tt.N, tt.Epoch, rank, got, want)
			}
		}
	}
}

func TestEpochRefused(t *testing.T) {
	for _, tt := range []struct {
		plan Plan
		e, n int
		want syscall.Errno
	}{
		{Plan{Kind: Torch, Epochs: 2}, 2, 5, syscall.ERANGE},
		{Plan{Kind: Torch}, -1, 5, syscall.ERANGE},
		{Plan{Kind: List, FirstOnly: true}, 1, 5, syscall.ERANGE},
		{Plan{Kind: Torch, Files: 6}, 0, 5, syscall.ESTALE},
		{Plan{Kind: Torch, Shuffle: true}, 0, 0, syscall.EINVAL},
		{Plan{Kind: List, Indices: []uint32{0, 5}}, 0, 5, syscall.EINVAL},
	} {
		if x, err := tt.plan.Epoch(tt.e, tt.n); !errors.Is(err, tt.want) {
			t.Errorf("%+v, epoch %d of %d files: %v, %v, want %v", tt.plan, tt.e, tt.n, x, err, tt.want)
		}
	}
}

func TestListEpochs(t *testing.T) {
	p := Plan{Kind: List, Ranks: 2, Indices: []uint32{3, 1, 4, 1, 2}}
	for e := range 3 {
		x, err := p.Epoch(e, 5)
		if err != nil || len(x.order) != 5 || x.Len(0) != 3 || x.Len(1) != 2 || x.At(1, 1) != 1 || x.At(0, 2) != 2 {
			t.Fatalf("epoch %d: %+v, %v", e, x, err)
		}
		if _, _, ok := x.Find(0); ok {
			t.Error("Find(0) finds a file that is in no list")
		}
	}
}

// tree is a set of files, by path.
type tree []string

func (t tree) Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error {
	sorted := slices.Clone(t)
	sort.Slice(sorted, func(i, k int) bool {
		di, ni := path.Split(sorted[i])
		dk, nk := path.Split(sorted[k])
		return di < dk || di == dk && ni < nk
	})
	last, number := "?", uint32(0)
	for _, p := range sorted {
		dir, name := path.Split(p)
		if dir != last {
			last = dir
			number++
		}
		if !fn(strings.TrimSuffix(dir, "/"), number, name, metadata.Attr{Ino: t.ino(p), Nlink: 1}) {
			break
		}
	}
	return nil
}

func (t tree) ino(p string) metadata.Ino {
	i := slices.Index(t, p)
	return metadata.SealedIno(3, uint16(i%2), uint32(i))
}

func TestNumber(t *testing.T) {
	for name, tt := range map[string]struct {
		plan Plan
		tree tree
		want []string
		root string
	}{
		"classes": {tree: tree{"b/2.jpg", "b/1.PNG", "a.b/x.webp", "a/deep/y.jpeg", "a/z.bmp"},
			want: []string{"a/z.bmp", "a/deep/y.jpeg", "a.b/x.webp", "b/1.PNG", "b/2.jpg"}},
		"strays": {tree: tree{"README.txt", ".DS_Store", "top.jpg", "a/.DS_Store", "a/1.jpg", "b/labels.csv", "b/2.jpg"},
			want: []string{"a/1.jpg", "b/2.jpg"}},
		"root": {plan: Plan{Root: "img/train"}, tree: tree{"img/train/a/1.jpg", "img/val/a/2.jpg", "img/train2/a/3.jpg", "img/train/4.jpg"},
			want: []string{"img/train/a/1.jpg"}, root: "img/train"},
		"train beside val": {tree: tree{"train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg", "test/4.jpg"},
			want: []string{"train/a/1.jpg", "train/b/2.jpg"}, root: "train"},
		"a class named train": {tree: tree{"car/1.jpg", "train/2.jpg"}, want: []string{"car/1.jpg", "train/2.jpg"}},
		"no images":           {tree: tree{"x.bin", "a/1.bin", "b/2.h5"}, want: []string{"x.bin", "a/1.bin", "b/2.h5"}},
		"paths":               {plan: Plan{Paths: []string{"b/2.x", "gone", "a/1.x"}}, tree: tree{"a/1.x", "b/2.x"}, want: []string{"b/2.x", "", "a/1.x"}},
		"paths below a root":  {plan: Plan{Root: "r", Paths: []string{"1.x"}}, tree: tree{"1.x", "r/1.x"}, want: []string{"r/1.x"}, root: "r"},
		"empty":               {},
	} {
		n, err := Number(tt.tree, &tt.plan)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if n.Len() != len(tt.want) || n.Root() != tt.root {
			t.Errorf("%s: %d files below %q, want %q below %q", name, n.Len(), n.Root(), tt.want, tt.root)
			continue
		}
		for i, p := range tt.want {
			if p == "" {
				if n.Ino(i) != 0 {
					t.Errorf("%s: file %d is inode %v, want none", name, i, n.Ino(i))
				}
				continue
			}
			if k, ok := n.Of(n.Ino(i)); n.Ino(i) != tt.tree.ino(p) || !ok || k != i {
				t.Errorf("%s: file %d is inode %v with number %d, %v; want %s", name, i, n.Ino(i), k, ok, p)
			}
		}
	}
	if _, err := Number(tree{"a/1.jpg"}, &Plan{Root: "b"}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a root that does not exist: %v, want EINVAL", err)
	}
	n, _ := Number(tree{"a/1.jpg"}, &Plan{})
	if _, ok := n.Of(metadata.SealedIno(3, 9, 77)); ok {
		t.Error("an inode of another dataset has a number")
	}
}

// TestRanges: a path may name a range of a file, unless a file has that name, and At finds the range for a read.
func TestRanges(t *testing.T) {
	files := tree{"d/a.h5", "d/b:0+9", "z"}
	n, err := Number(files, &Plan{Root: "d", Paths: []string{"a.h5:100+50", "a.h5:0+100", "b:0+9", "gone:0+1", "a.h5:-1+3", "a.h5:0+9223372036854775808", "a.h5:150+8"}})
	if err != nil || n.Len() != 7 || !n.Ranged() {
		t.Fatalf("%d numbers, ranged %v, %v", n.Len(), n.Ranged(), err)
	}
	a, b := files.ino("d/a.h5"), files.ino("d/b:0+9")
	for i, want := range []struct {
		ino metadata.Ino
		r   Range
	}{{a, Range{100, 50}}, {a, Range{0, 100}}, {b, Range{}}, {0, Range{0, 1}}, {}, {}, {a, Range{150, 8}}} {
		if n.Ino(i) != want.ino || n.Range(i) != want.r {
			t.Errorf("number %d is %v of inode %v, want %v of %v", i, n.Range(i), n.Ino(i), want.r, want.ino)
		}
	}
	for _, x := range []struct {
		ino        metadata.Ino
		off, slack int64
		want       int // -1: none
	}{{a, 0, 1, 1}, {a, 99, 1, 1}, {a, 100, 1, 0}, {a, 96, 8, 0}, {a, 149, 1, 0}, {a, 157, 1, 6}, {a, 158, 1, -1}, {b, 1 << 40, 1, 2}, {files.ino("z"), 0, 1, -1}} {
		got, ok := n.At(x.ino, x.off, x.slack)
		if !ok {
			got = -1
		}
		if got != x.want {
			t.Errorf("At(%v, %d, %d) = %d, want %d", x.ino, x.off, x.slack, got, x.want)
		}
	}
	whole, _ := Number(files, &Plan{Paths: []string{"d/a.h5"}})
	if k, ok := whole.At(a, 77, 1); !ok || k != 0 || whole.Ranged() || whole.Range(0) != (Range{}) {
		t.Errorf("a whole file: %d, %v, %v", k, ok, whole.Range(0))
	}
}

func TestParse(t *testing.T) {
	for s, want := range map[string]Plan{
		"seed:0": {Kind: Torch, Shuffle: true},
		"seed:7,ranks=16,epochs=90,root=train,drop_last": {Kind: Torch, Seed: 7, Shuffle: true, Ranks: 16, Epochs: 90, Root: "train", DropLast: true},
		"random:18446744073709551615":                    {Kind: Random, Seed: 1<<64 - 1, Shuffle: true},
		"chunk:5,ranks=2,chunk=16,group=4":               {Kind: Chunk, Seed: 5, Shuffle: true, Ranks: 2, Chunk: 16, Group: 4},
		"loader:3,root=a//b/":                            {Kind: Loader, Seed: 3, Shuffle: true, Root: "a/b"},
	} {
		p, err := Parse(s)
		if err != nil || p.Digest() != want.Digest() {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", s, p, err, want)
		}
	}
	for _, s := range []string{"", "seed", "seed:", "seed:-1", "seed:x", "list:/x", "seed:1,ranks=0", "seed:1,ranks=x", "seed:1,epochs=-1",
		"seed:1,root=..", "seed:1,root=/x", "seed:1,root=", "seed:1,drop_last=1", "seed:1,,", "seed:1,what", "seed:1,chunk=2", "chunk:1,group=0"} {
		if p, err := Parse(s); !errors.Is(err, syscall.EINVAL) || !strings.Contains(fmt.Sprint(err), "give") {
			t.Errorf("Parse(%q) = %+v, %v, want EINVAL and what to give", s, p, err)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, p := range []Plan{
		{}, {Dataset: "d"}, {Dataset: "d", Kind: "x"}, {Dataset: "d", Kind: Torch, Ranks: -1}, {Dataset: "d", Kind: Torch, Epochs: -1},
		{Dataset: "d", Kind: Torch, Files: -1}, {Dataset: "d", Kind: Torch, Root: "../x"}, {Dataset: "d", Kind: Torch, Root: "a\x00"},
		{Dataset: "d", Kind: Torch, Indices: []uint32{1}}, {Dataset: "d", Kind: Random, FirstOnly: true},
		{Dataset: "d", Kind: Torch, Chunk: 1}, {Dataset: "d", Kind: Chunk, Group: -1}, {Dataset: "d", Kind: Chunk, Chunk: MaxFiles + 1},
	} {
		if err := p.Check(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v, want EINVAL", p, err)
		}
	}
	if err := (&Plan{Dataset: "d", Kind: List, Indices: []uint32{1}, FirstOnly: true}).Check(); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"seed:7", "random:1,ranks=2", "chunk:2,chunk=8,group=3", "loader:0,root=a,drop_last", "seed:1,epochs="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse(s)
		if err != nil {
			return
		}
		if again, err := Parse(p.String()); err != nil || again.Digest() != p.Digest() {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", p.String(), again, err, p)
		}
	})
}

// FuzzPlan computes an epoch of a plan from another node for a dataset that the plan may not fit.
func FuzzPlan(f *testing.F) {
	f.Add([]byte(`{"dataset":"d","kind":"torch","seed":1,"ranks":3,"shuffle":true}`), uint16(10))
	f.Add([]byte(`{"dataset":"d","kind":"chunk","seed":1,"ranks":3,"chunk":2,"group":2}`), uint16(17))
	f.Add([]byte(`{"dataset":"d","kind":"list","indices":[1,2],"drop_last":true,"ranks":9}`), uint16(3))
	f.Fuzz(func(t *testing.T, b []byte, n uint16) {
		var p Plan
		if json.Unmarshal(b, &p) != nil || p.Check() != nil {
			return
		}
		x, err := p.Epoch(0, int(n))
		if err != nil {
			return
		}
		total := 0
		for rank := range min(x.ranks, 1000) {
			total += x.Len(rank)
			if k := x.Len(rank); k > 0 && (x.At(rank, k-1) >= int(n) || x.At(rank, k-1) < 0) {
				t.Errorf("rank %d reads file %d of %d", rank, x.At(rank, k-1), n)
			}
		}
		if x.ranks <= 1000 && total != len(x.order) {
			t.Errorf("the ranks read %d files, want %d", total, len(x.order))
		}
	})
}

func BenchmarkEpoch(b *testing.B) {
	p := Plan{Kind: Torch, Shuffle: true, Ranks: 64}
	for b.Loop() {
		if _, err := p.Epoch(int(rand.Uint32()>>1), 1_281_167); err != nil {
			b.Fatal(err)
		}
	}
}
