package cluster

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// chiSquare returns the chi-square statistic of counts against equal shares. Its mean is len(counts)-1, its deviation
// √(2·(len(counts)-1)).
func chiSquare(counts []int) float64 {
	total := 0
	for _, c := range counts {
		total += c
	}
	want := float64(total) / float64(len(counts))
	x := 0.0
	for _, c := range counts {
		x += (float64(c) - want) * (float64(c) - want) / want
	}
	return x
}

// checkEven fails if counts deviate from equal shares by more than five standard deviations, or suspiciously little.
func checkEven(t *testing.T, what string, counts []int) {
	t.Helper()
	df := float64(len(counts) - 1)
	if x := chiSquare(counts); math.Abs(x-df) > 5*math.Sqrt(2*df)+1 {
		t.Errorf("%s: chi-square %.1f of %.0f degrees: %v", what, x, df, counts)
	}
}

// TestPlacementIsUnbiased places names like those of datasets, which a weak hash would place in patterns.
func TestPlacementIsUnbiased(t *testing.T) {
	const n = 16
	for _, seed := range []uint64{0, 42, 1 << 63} {
		m := upMap(n, seed)
		files, homes := make([]int, n), make([]int, n)
		first, second := make([]int, n), make([]int, n)
		after := make([]int, n*n)
		prev := metadata.NodeID(0)
		for i := range 64000 {
			path := fmt.Sprintf("train/n%08d/img_%d.jpg", i/100, i)
			o := m.FileOwner(path)
			files[o]++
			after[int(prev)*n+int(o)]++
			prev = o
			homes[m.DirHome(metadata.LiveIno(metadata.NodeID(i%n), uint64(i)), fmt.Sprint("epoch", i%7))]++
			order := m.Order(metadata.LiveIno(3, uint64(1024+i)), metadata.Layout{Epoch: n})
			first[order[0]]++
			second[order[1]]++
		}
		checkEven(t, "FileOwner", files)
		checkEven(t, "FileOwner of neighbours", after)
		checkEven(t, "DirHome", homes)
		checkEven(t, "Order[0]", first)
		checkEven(t, "Order[1]", second)
		for _, c := range files {
			if dev := math.Abs(float64(c)/4000 - 1); dev > 0.08 {
				t.Errorf("seed %d: a node is %.1f %% off its share: %v", seed, dev*100, files)
			}
		}
	}
}

func TestSeedsDiffer(t *testing.T) {
	a, b := upMap(8, 1), upMap(8, 2)
	same := 0
	for i := range 8000 {
		if p := fmt.Sprint("f", i); a.FileOwner(p) == b.FileOwner(p) {
			same++
		}
	}
	if same < 850 || same > 1150 {
		t.Errorf("two seeds agree on %d of 8000 files, want about 1000", same)
	}
}

// TestDownMovesOnlyItsShare tests the point of rendezvous hashing.
func TestDownMovesOnlyItsShare(t *testing.T) {
	m := upMap(10, 7)
	down := m.WithState(4, Down, "")
	moved := make([]int, 10)
	for i := range 50000 {
		p := fmt.Sprintf("d/%d", i)
		was, is := m.FileOwner(p), down.FileOwner(p)
		switch {
		case is == 4:
			t.Fatalf("FileOwner(%s) is Down", p)
		case was == 4:
			moved[is]++
		case was != is:
			t.Fatalf("FileOwner(%s) moved from %d to %d when 4 went Down", p, was, is)
		}
		if wh, ih := m.DirHome(16, p), down.DirHome(16, p); wh != 4 && wh != ih {
			t.Fatalf("DirHome(%s) moved from %d to %d when 4 went Down", p, wh, ih)
		}
	}
	checkEven(t, "what moved", slices.Delete(moved, 4, 5))
}

func TestOrderIsStable(t *testing.T) {
	m := upMap(6, 9)
	m = m.WithState(2, Down, "")
	e := m.Epoch
	layouts := []metadata.Layout{{}, {Epoch: e}, {Epoch: e, Width: 3}, {Epoch: 4}, {Kind: metadata.Local, Node: 5, Epoch: e}}
	want := map[string][]metadata.NodeID{}
	key := func(i int, l metadata.Layout) string { return fmt.Sprint(i, l) }
	for i := range 200 {
		for _, l := range layouts {
			want[key(i, l)] = m.Order(metadata.Ino(1024+i), l)
		}
	}
	for _, s := range []struct {
		id metadata.NodeID
		s  State
	}{{2, Up}, {0, Down}, {1, Leaving}, {0, Up}, {5, Down}, {3, Down}, {2, Down}} {
		m = m.WithState(s.id, s.s, "")
		for i := range 200 {
			for _, l := range layouts {
				if got := m.Order(metadata.Ino(1024+i), l); !reflect.DeepEqual(got, want[key(i, l)]) {
					t.Fatalf("epoch %d: Order(%d, %v) = %v, want %v as before", m.Epoch, i, l, got, want[key(i, l)])
				}
			}
		}
	}
}

func TestOrder(t *testing.T) {
	m := upMap(5, 3).WithState(1, Down, "")
	for i := range 100 {
		all := m.Order(metadata.Ino(1024+i), metadata.Layout{Epoch: m.Epoch, Width: metadata.AllNodes})
		sorted := slices.Sorted(slices.Values(all))
		if !reflect.DeepEqual(sorted, []metadata.NodeID{0, 2, 3, 4}) {
			t.Fatalf("Order = %v, want each node that is Up once", all)
		}
		cut := m.Order(metadata.Ino(1024+i), metadata.Layout{Epoch: m.Epoch, Width: 2})
		if !reflect.DeepEqual(cut, all[:2]) {
			t.Fatalf("Order of width 2 = %v, want the start of %v", cut, all)
		}
		wide := m.Order(metadata.Ino(1024+i), metadata.Layout{Epoch: m.Epoch, Width: 9})
		if !reflect.DeepEqual(wide, all) {
			t.Fatalf("Order of width 9 = %v, want %v", wide, all)
		}
	}
	if got := m.Order(1, metadata.Layout{Kind: metadata.Local, Node: 3}); !reflect.DeepEqual(got, []metadata.NodeID{3}) {
		t.Errorf("Order of a local layout = %v", got)
	}
}

// TestDefaultWidth: a scratch file is on a few of many nodes, the first of the wide order; a dataset's file on all.
func TestDefaultWidth(t *testing.T) {
	m := upMap(20, 3)
	of := func(ino metadata.Ino, width uint16) []metadata.NodeID {
		return m.Order(ino, metadata.Layout{Epoch: m.Epoch, Width: width})
	}
	if got, all := of(1024, 0), of(1024, metadata.AllNodes); len(got) != metadata.DefaultWidth || len(all) != 20 || !slices.Equal(got, all[:len(got)]) {
		t.Errorf("the default width of 20 nodes is %v, all are %v", got, all)
	}
	if got := of(metadata.SealedIno(1, 0, 7), 0); len(got) != 20 {
		t.Errorf("a file of a dataset lies on %v", got)
	}
}

// TestPlacementIsPinned compares with results of an earlier build: nodes of a job with different builds must agree, and
// so must a restarted node.
func TestPlacementIsPinned(t *testing.T) {
	m := upMap(8, 42)
	got := fmt.Sprint(m.FileOwner("a/b"), m.FileOwner("train/0.jpg"), m.DirHome(16, "ckpt"), m.Order(1024, metadata.Layout{Epoch: 8, Width: metadata.AllNodes}))
	if want := "4 5 4 [4 5 2 6 3 7 1 0]"; got != want {
		t.Errorf("placement = %s, want %s", got, want)
	}
}

func BenchmarkFileOwner(b *testing.B) {
	m := upMap(512, 1)
	for b.Loop() {
		m.FileOwner("train/n01440764/n01440764_10026.JPEG")
	}
}

func BenchmarkOrder(b *testing.B) {
	for _, n := range []int{64, 1000} {
		m := upMap(n, 1)
		b.Run(fmt.Sprint("nodes=", n), func(b *testing.B) {
			for b.Loop() {
				m.Order(1024, metadata.Layout{Epoch: metadata.Epoch(n)})
			}
		})
	}
}

// TestTop: the heaviest places are those that sorting all of them would give.
func TestTop(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		all := make([]place, rng.IntN(20))
		for i := range all {
			all[i] = place{rng.Uint64N(30), metadata.NodeID(i)}
		}
		sorted := slices.SortedFunc(slices.Values(all), heavier)
		for n := range len(all) + 1 {
			if got := top(slices.Clone(all), n); !slices.Equal(got, sorted[:n]) {
				t.Fatalf("the %d heaviest of %v are %v, want %v", n, all, got, sorted[:n])
			}
		}
	}
}

// TestHolder: a lost node's part is distributed evenly, the parts of other nodes stay, and the placement is as before
// when the node returns.
func TestHolder(t *testing.T) {
	m := upMap(5, 3)
	down := m.WithState(4, Down, "")
	count := make([]int, 5)
	for i := range 20_000 {
		ino := metadata.SealedIno(1, 0, uint32(i))
		own := metadata.NodeID(i % 5)
		if got := m.Holder(ino, own); got != own {
			t.Fatalf("Holder(%v, %d) = %d while all are up", ino, own, got)
		}
		got := down.Holder(ino, own)
		if own != 4 && got != own || got == 4 {
			t.Fatalf("Holder(%v, %d) = %d while 4 is down", ino, own, got)
		}
		if own == 4 {
			count[got]++
		}
		if back := down.WithState(4, Up, "x").Holder(ino, own); back != own {
			t.Fatalf("Holder(%v, %d) = %d when 4 is back", ino, own, back)
		}
	}
	checkEven(t, "Holder", count[:4])
	none := m
	for i := range 5 {
		none = none.WithState(metadata.NodeID(i), Down, "")
	}
	if got := none.Holder(metadata.SealedIno(1, 0, 1), 2); int(got) >= 5 {
		t.Errorf("Holder where no node is up = %d", got)
	}
}

// TestFileOwnerUnbiased: every node has an unbiased sample of a dataset: its classes are distributed at random
// (chi-square), and of 100,000 files of different sizes each node has its share of the bytes, to 5 %.
func TestFileOwnerUnbiased(t *testing.T) {
	const classes, files = 100, 100_000
	for _, nodes := range []int{2, 4, 7, 16} {
		for seed := range uint64(2) {
			m := upMap(nodes, seed)
			count := make([][]float64, nodes)
			for i := range count {
				count[i] = make([]float64, classes)
			}
			size := make([]float64, nodes)
			rng := rand.New(rand.NewPCG(seed, 1))
			total := 0.0
			for i := range files {
				owner := m.FileOwner(fmt.Sprintf("train/class%03d/sample%06d.jpg", i%classes, i))
				count[owner][i%classes]++
				n := 100_000 * math.Exp(rng.NormFloat64()/2) // like photographs: most of 60 to 170 kB
				size[owner] += n
				total += n
			}
			if x, most := chiTable(count), chiBound((nodes-1)*classes); x > most {
				t.Errorf("%d nodes, seed %d: chi-square of classes by node is %.0f, at most %.0f in 99.99 %% of all cases", nodes, seed, x, most)
			}
			for i, n := range size {
				if share := n / total * float64(nodes); math.Abs(share-1) > 0.05 {
					t.Errorf("%d nodes, seed %d: node %d has %.3f of its share of the bytes", nodes, seed, i, share)
				}
			}
		}
	}
}

// chiTable returns the chi-square statistic of counts by node and class.
func chiTable(count [][]float64) (x float64) {
	classes := make([]float64, len(count[0]))
	for _, c := range count {
		for k, n := range c {
			classes[k] += n
		}
	}
	for _, c := range count {
		for k, n := range c {
			want := classes[k] / float64(len(count))
			x += (n - want) * (n - want) / want
		}
	}
	return x
}

// chiBound returns the value that chi-square with the given degrees of freedom exceeds once in 10,000 (Wilson and
// Hilferty).
func chiBound(freedom int) float64 {
	const z = 3.72
	k := 2 / (9 * float64(freedom))
	return float64(freedom) * math.Pow(1-k+z*math.Sqrt(k), 3)
}

// A directory has its home where it is created, unless its parent has many or its creator cannot keep it; then its home
// is chosen by hash.
func TestNewDirHome(t *testing.T) {
	m := upMap(8, 3)
	down := m.WithState(5, Down, "")
	for i := range 200 {
		name := fmt.Sprint("d", i)
		hash := m.DirHome(16, name)
		for _, c := range []struct {
			m     Map
			nlink uint32
			maker metadata.NodeID
			want  metadata.NodeID
		}{
			{m, 2, 5, 5},
			{m, 2 + nearDirs - 1, 5, 5},
			{m, 2 + nearDirs, 5, hash},
			{m, 1000, 5, hash},
			{m, 2, 0xffff, hash}, // a client without a share
			{down, 2, 5, down.DirHome(16, name)},
		} {
			if got := c.m.NewDirHome(16, c.nlink, name, c.maker); got != c.want {
				t.Errorf("NewDirHome(16, %d, %s, %d) = %d, want %d", c.nlink, name, c.maker, got, c.want)
			}
		}
	}
}
