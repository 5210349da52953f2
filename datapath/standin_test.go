package datapath

import "testing"

// TestStandIn: a node's own data and its data for others do not overlap in its object, and each
// offset tells which it is.
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
