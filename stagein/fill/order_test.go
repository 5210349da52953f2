package fill

import (
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// imageFolder returns a tree laid out as for torchvision's ImageFolder.
func imageFolder(t *testing.T) (*stageintest.MemFiles, []string) {
	t.Helper()
	var b strings.Builder
	w := manifest.NewWriter(&b)
	var paths []string
	for c := range 7 {
		for f := range 13 + c {
			paths = append(paths, fmt.Sprintf("class%d/img %d.jpg", c, f))
		}
	}
	paths = append(paths, "class1/deep/er/x.png", "class1/deep/y.JPEG", "class1.old/z.webp", ".DS_Store", "README.txt", "class0/notes.txt")
	for i, p := range paths {
		r := manifest.Record{Path: p, From: manifest.Origin{Path: p}, Attr: metadata.Attr{
			Ino: metadata.SealedIno(3, 0, uint32(i)), Mode: 0o100644, Nlink: 1, Size: int64(i + 1),
			Layout: metadata.Layout{Kind: metadata.Local, Node: metadata.NodeID(i % 3)},
		}}
		if err := w.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := stageintest.FilesOf([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return m, paths
}

// listOf returns the paths of a node's pieces in the order of its fill.
func listOf(t *testing.T, files *stageintest.MemFiles, node metadata.NodeID, o stagein.Order, list []string) []string {
	t.Helper()
	m := stageintest.ClusterMap(3)
	f := &Fill{present: newPieceSet(), cfg: Config{
		Self: node, Files: files, List: list, Origins: stagein.Origins{Order: o},
		Watch: func() (cluster.Map, <-chan struct{}) { return m, nil },
	}}
	ps, err := f.list(m)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, p := range ps {
		paths = append(paths, files.ByIno[p.Ino].Path)
	}
	return paths
}

// TestOrderSeed: together the nodes fetch the files in the order of a program that numbers them like ImageFolder and
// shuffles them.
func TestOrderSeed(t *testing.T) {
	files, paths := imageFolder(t)
	// The twin of torchvision's make_dataset: classes; per class, directories sorted as strings; per directory, names.
	isImage := func(p string) bool { return filepath.Ext(p) != ".txt" && filepath.Ext(p) != ".DS_Store" }
	sorted := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return !isImage(p) })
	sort.Slice(sorted, func(i, k int) bool {
		di, ni := cutPath(sorted[i])
		dk, nk := cutPath(sorted[k])
		if ci, ck := strings.Split(di, "/")[0], strings.Split(dk, "/")[0]; ci != ck {
			return ci < ck
		}
		return di < dk || di == dk && ni < nk
	})
	var want []string
	for _, n := range accessplan.RandPerm(5, len(sorted)) {
		want = append(want, sorted[n])
	}
	owner := map[string]int{}
	for i, p := range paths {
		owner[p] = i % 3
	}
	for node := range 3 {
		mine := slices.DeleteFunc(slices.Clone(want), func(p string) bool { return owner[p] != node })
		got := listOf(t, files, metadata.NodeID(node), stagein.Order{Kind: stagein.OrderSeed, Seed: 5}, nil)
		if k := len(got) - len(mine); k < 1 || !slices.Equal(got[:len(mine)], mine) || slices.ContainsFunc(got[len(mine):], isImage) {
			t.Errorf("node %d: %q, want %q and then the files that are no images", node, got, mine)
		}
	}
}

func cutPath(p string) (dir, name string) {
	i := strings.LastIndexByte(p, '/')
	return p[:max(i, 0)], p[i+1:]
}

// TestOrders: each order contains every file of the node exactly once.
func TestOrders(t *testing.T) {
	files, paths := imageFolder(t)
	var mine []string
	for i, p := range paths {
		if i%3 == 1 {
			mine = append(mine, p)
		}
	}
	seeded := listOf(t, files, 1, stagein.Order{Kind: stagein.OrderSeed, Seed: 5}, nil)
	for _, o := range []stagein.Order{{Kind: stagein.OrderSeed, Seed: 5, Ranks: 4, DropLast: true, Epochs: 1}, {Kind: stagein.OrderSeed, Seed: 5, Root: "nowhere"}} {
		if got := listOf(t, files, 1, o, nil); !slices.Equal(got, seeded) {
			t.Errorf("%v: another order than that of its seed alone", o)
		}
	}
	shuffled := listOf(t, files, 1, stagein.Order{Kind: stagein.OrderShuffled, Seed: 1}, nil)
	if slices.Equal(shuffled, mine) || slices.Equal(shuffled, listOf(t, files, 1, stagein.Order{Kind: stagein.OrderShuffled, Seed: 2}, nil)) {
		t.Errorf("shuffled is %q", shuffled)
	}
	slices.Sort(shuffled)
	if want := slices.Sorted(slices.Values(mine)); !slices.Equal(shuffled, want) {
		t.Errorf("shuffled has %q, want %q", shuffled, want)
	}
	if got := listOf(t, files, 1, stagein.Order{Kind: stagein.OrderSource}, nil); !slices.Equal(got, mine) {
		t.Errorf("source is %q, want %q", got, mine)
	}
	list := []string{mine[9], "not there", paths[0], mine[4], mine[9], mine[7]}
	got := listOf(t, files, 1, stagein.Order{Kind: stagein.OrderList, List: "/x"}, list)
	if want := []string{mine[9], mine[4], mine[7]}; len(got) != len(mine) || !slices.Equal(got[:3], want) {
		t.Errorf("a list begins with %q of %d, want %q of %d", got[:3], len(got), want, len(mine))
	}
}

// TestFirst: a node counts the samples present from the beginning of the order, in its own part alone; a file fetched
// out of turn counts once the gap before it is closed. Without an order of samples the count is not defined.
func TestFirst(t *testing.T) {
	files, paths := imageFolder(t)
	list := slices.Clone(paths)
	slices.Sort(list)
	f := &Fill{present: newPieceSet(), cfg: Config{
		Self: 1, Files: files, List: list, Origins: stagein.Origins{Order: stagein.Order{Kind: stagein.OrderList, List: "/list"}},
		Watch: func() (cluster.Map, <-chan struct{}) { return stageintest.ClusterMap(3), nil },
	}}
	if got := f.First(); got != 0 {
		t.Errorf("First before the order is known = %d", got)
	}
	ps, err := f.list(stageintest.ClusterMap(3))
	if err != nil {
		t.Fatal(err)
	}
	turn := func(i int) int64 { return int64(slices.Index(list, files.ByIno[ps[i].Ino].Path)) }
	for i, want := range []int64{turn(0), turn(0), turn(2), turn(2)} {
		if got := f.First(); got != want {
			t.Errorf("First after %d steps = %d, want %d", i, got, want)
		}
		f.present.add(ps[[]int{1, 0, 3, 2}[i]]) // the second, the first, the fourth, the third
	}
	for _, p := range ps {
		f.present.add(p)
	}
	if got := f.First(); got != stagein.AllFirst {
		t.Errorf("First with everything = %d", got)
	}
	if got := stagein.Sum([]stagein.Progress{{First: 7}, {First: stagein.AllFirst}}).First; got != 7 {
		t.Errorf("First of two nodes = %d, want 7", got)
	}
	f.cfg.Origins.Order = stagein.Order{}
	if got := f.First(); got != 0 {
		t.Errorf("First without an order = %d", got)
	}
}
