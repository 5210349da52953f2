package appends

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

func TestGaps(t *testing.T) {
	ext := func(off, n int64) metadata.Extent { return metadata.Extent{Off: off, Len: n} }
	for _, c := range []struct {
		placed []metadata.Extent
		size   int64
		want   []metadata.Extent
	}{
		{nil, 10, nil},
		{[]metadata.Extent{ext(10, 5)}, 10, nil},
		{[]metadata.Extent{ext(0, 5)}, 10, nil},
		{[]metadata.Extent{ext(20, 5), ext(12, 3)}, 10, []metadata.Extent{ext(10, 2), ext(15, 5)}},
		{[]metadata.Extent{ext(12, 9), ext(14, 1), ext(30, 1)}, 10, []metadata.Extent{ext(10, 2), ext(21, 9)}},
	} {
		if got := gaps(c.placed, c.size); !slices.Equal(got, c.want) {
			t.Errorf("gaps(%v, %d) = %v, want %v", c.placed, c.size, got, c.want)
		}
	}
}

// TestFillGaps: reservations whose clients do not know their places fill the gaps to the last byte.
func TestFillGaps(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		var placed []metadata.Extent
		var all []pending
		tail := int64(0)
		for id := range rng.IntN(7) {
			e := metadata.Extent{Off: tail, Len: rng.Int64N(5) + 1}
			switch rng.IntN(3) {
			case 0: // its client knows its place
				placed = append(placed, e)
				tail = e.End()
			case 1: // it has a place that its client does not know
				tail = e.End()
				fallthrough
			case 2: // it has no place
				all = append(all, pending{metadata.NodeID(id), metadata.Reservation{Seq: 1, Extent: metadata.Extent{Off: -1, Len: e.Len}}})
			}
		}
		free := gaps(placed, 0)
		want := int64(0)
		for _, e := range free {
			want += e.Len
		}
		got := int64(0)
		for _, p := range fillGaps(free, all) {
			placed = append(placed, p.flight.Extent)
			got += p.flight.Len
		}
		if got != want || len(gaps(placed, 0)) != 0 {
			t.Fatalf("%d of %d bytes of %v are filled from %v", got, want, free, all)
		}
	}
	many := make([]pending, 200)
	for i := range many {
		many[i].flight.Len = 2
	}
	if got := fillGaps([]metadata.Extent{{Off: 0, Len: 101}}, many); len(got) != 50 {
		t.Errorf("%d appends in a gap that cannot be filled, want 50", len(got))
	}
}
