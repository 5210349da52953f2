package cluster

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestBalanceOfFew: sixteen shards on four nodes are four on each, for any seed, and ten are two or three on each.
func TestBalanceOfFew(t *testing.T) {
	for seed := range uint64(50) {
		for _, n := range []int{16, 10, 3} {
			b, has := upMap(4, seed).Balance(int64(n)*1000), make([]int, 4)
			for i := range n {
				has[b.Owner(fmt.Sprintf("train-%06d.tar", i), 1000)]++
			}
			for id, got := range has {
				if got < n/4 || got > (n+3)/4 {
					t.Errorf("seed %d: node %d has %d of %d shards: %v", seed, id, got, n, has)
				}
			}
		}
	}
}

// TestBalanceBounds: for files of any size, no node has more than its share plus the slack and one file, none is on a
// node that is down, and most are on the node chosen by the hash.
func TestBalanceBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m := upMap(8, 3).WithState(5, Down, "")
	sizes, total, largest := make([]int64, 200), int64(0), int64(0)
	for i := range sizes {
		sizes[i] = r.Int64N(1 << 20)
		total, largest = total+sizes[i], max(largest, sizes[i])
	}
	owners := func() (all []metadata.NodeID) {
		b := m.Balance(total)
		for i, size := range sizes {
			all = append(all, b.Owner(fmt.Sprint("f", i), size))
		}
		return all
	}
	has, moved := make([]int64, 8), 0
	again := owners()
	for i, id := range owners() {
		has[id] += sizes[i]
		if id != m.FileOwner(fmt.Sprint("f", i)) {
			moved++
		}
		if id != again[i] {
			t.Fatalf("file %d is on %d, and on %d the second time", i, id, again[i])
		}
	}
	for id, n := range has {
		if n > total/7*17/16+largest || id == 5 && n > 0 {
			t.Errorf("node %d has %d of %d bytes", id, n, total)
		}
	}
	if moved > len(sizes)/4 {
		t.Errorf("%d of %d files are not where the hash puts them", moved, len(sizes))
	}
}

// TestBalanceOfSmall: small files stay on the node chosen by the hash, even beside a large one.
func TestBalanceOfSmall(t *testing.T) {
	m := upMap(3, 1)
	b := m.Balance(1<<20 + 60*6000)
	b.Owner("large", 1<<20)
	for i := range 60 {
		if p := fmt.Sprint(i); b.Owner(p, 6000) != m.FileOwner(p) {
			t.Errorf("file %d is not where the hash puts it", i)
		}
	}
}

// TestBalanceWithoutNodes: a file has an owner even if no node is up, as with FileOwner.
func TestBalanceWithoutNodes(t *testing.T) {
	m := upMap(2, 1).WithState(0, Down, "").WithState(1, Down, "")
	if got := m.Balance(10).Owner("f", 10); got != m.FileOwner("f") {
		t.Errorf("Owner = %d, want %d", got, m.FileOwner("f"))
	}
}
