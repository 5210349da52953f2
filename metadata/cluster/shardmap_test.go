package cluster

import (
	"fmt"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestEntryHome: realistic names are distributed evenly over the nodes of the epoch, permanently, and a ShardMap agrees
// with the Map.
func TestEntryHome(t *testing.T) {
	const n = 16
	for _, seed := range []uint64{0, 7, 1 << 63} {
		m := upMap(n, seed)
		e := m.Epoch
		later := m.WithState(3, Down, "").WithState(5, Down, "")
		gone := later.Epoch
		for _, dir := range []metadata.Ino{metadata.RootIno, metadata.LiveIno(7, 5000)} {
			all, left := make([]int, n), make([]int, n)
			s, rest := later.ShardMap(e), later.ShardMap(gone)
			for i := range 32000 {
				name := fmt.Sprintf("rank%04d/ckpt-%06d.pt", i%64, i)
				h := m.EntryHome(dir, name, e)
				if got := later.EntryHome(dir, name, e); got != h || s.Home(dir, name) != h {
					t.Fatalf("%s is at home on node %d, later on %d, by the split on %d", name, h, got, s.Home(dir, name))
				}
				all[h]++
				if h = later.EntryHome(dir, name, gone); h == 3 || h == 5 || rest.Home(dir, name) != h {
					t.Fatalf("%s is at home on node %d, by the split on %d", name, h, rest.Home(dir, name))
				}
				left[h]++
				if home := m.EntryHome(dir, name, 0); home != dir.Home() {
					t.Fatalf("an entry that is not split is at home on node %d", home)
				}
			}
			checkEven(t, "EntryHome", all)
			checkEven(t, "EntryHome of 14 nodes", slices.Delete(slices.Delete(left, 5, 6), 3, 4))
		}
	}
}

func TestShardMapNext(t *testing.T) {
	s := ShardMap{Nodes: []metadata.NodeID{1, 4, 9}}
	for _, tt := range []struct {
		id, next metadata.NodeID
		more     bool
	}{{1, 4, true}, {4, 9, true}, {9, 0, false}, {0, 1, true}, {5, 9, true}, {12, 0, false}} {
		if next, more := s.Next(tt.id); next != tt.next || more != tt.more {
			t.Errorf("Next(%d) = %d, %v, want %d, %v", tt.id, next, more, tt.next, tt.more)
		}
	}
}

func TestShardTable(t *testing.T) {
	var w ShardTable
	if w.Epoch(5) != 0 {
		t.Error("an empty table knows a directory")
	}
	for i := range metadata.Ino(maxSharded + 50) {
		w.Learn(&metadata.Redirect{Dir: i + 1, Epoch: 3})
	}
	if n := w.epochs.Len(); n != maxSharded {
		t.Errorf("%d directories are remembered, want %d", n, maxSharded)
	}
	w.Learn(&metadata.Redirect{Dir: 99999, Epoch: 4})
	if w.Epoch(99999) != 4 {
		t.Error("the last one is not remembered")
	}
	w.Learn(&metadata.Redirect{Dir: 99999})
	if w.Epoch(99999) != 0 {
		t.Error("a directory that was merged is remembered")
	}
}
