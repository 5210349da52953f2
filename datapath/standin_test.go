package datapath

import (
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestStandIn: a node's own data and its data for other nodes do not overlap in its object, and each offset tells which
// of them it belongs to.
func TestStandIn(t *testing.T) {
	const chunk = 4
	for w := 2; w < 6; w++ {
		for size := int64(1); size < 70; size++ {
			taken := make(map[int64]bool)
			for k := -1; k < w; k++ {
				n := ObjectSize(chunk, w, max(k, 0), size)
				for off := range n {
					at := off
					if k >= 0 {
						at = StandIn(chunk, w, k, size, off)
					}
					if taken[at] {
						t.Fatalf("width %d, size %d: offset %d is taken twice", w, size, at)
					}
					taken[at] = true
					if gotK, got := Place(chunk, w, size, at); gotK != k || got != off {
						t.Fatalf("width %d, size %d: Place(%d) = %d, %d, want %d, %d", w, size, at, gotK, got, k, off)
					}
				}
			}
		}
	}
	if got := StandIn(chunk, 1, 0, 100, 17); got != 17 {
		t.Errorf("StandIn of a file on one node = %d", got)
	}
}

// TestChunkAt: ChunkAt is the inverse of ObjectOffset, and no two chunks overlap in an object.
func TestChunkAt(t *testing.T) {
	all := []metadata.NodeID{4, 2, 7, 1, 9}
	for w := 1; w <= len(all); w++ {
		for size := int64(1); size < 40; size++ {
			for self, on := range []metadata.NodeID{4, 2, 7, 1, 9, 5} {
				if self >= w {
					self = -1
				}
				seen := make(map[int64]bool)
				for i := int64(0); i*3 < size; i++ {
					off := ObjectOffset(3, all[:w], size, i, on)
					if got := ChunkAt(3, w, self, size, off+2); got != i || seen[off] {
						t.Fatalf("chunk %d of %d bytes on %d nodes is at %d of node %d, where ChunkAt finds %d", i, size, w, off, on, got)
					}
					seen[off] = true
				}
				for off := int64(0); off < 200; off += 3 {
					if i := ChunkAt(3, w, self, size, off); i >= 0 && all[i%int64(w)] != on && ObjectOffset(3, all[:w], size, i, on) != off {
						t.Fatalf("ChunkAt finds chunk %d of %d bytes on %d nodes at %d of node %d", i, size, w, off, on)
					}
				}
			}
		}
	}
}
