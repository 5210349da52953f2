package appends

import (
	"cmp"
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// pending is a reservation whose client does not know its place: an earlier run of the home may have given one.
type pending struct {
	node   metadata.NodeID
	flight metadata.Reservation
}

// gaps returns the free extents between size and the last extent of placed.
func gaps(placed []metadata.Extent, size int64) []metadata.Extent {
	placed = slices.Clone(placed)
	slices.SortFunc(placed, func(a, b metadata.Extent) int { return cmp.Compare(a.Off, b.Off) })
	var free []metadata.Extent
	for _, e := range placed {
		if e.Off > size {
			free = append(free, metadata.Extent{Off: size, Len: e.Off - size})
		}
		size = max(size, e.End())
	}
	return free
}

// fillTries bounds the search of fillGaps.
const fillTries = 10_000

// fillGaps puts pending reservations into the gaps. A gap consists of the consecutive places of some of them, or of one
// whose client is dead. A reservation without a place belongs to no gap. So fillGaps searches for a choice that fills
// the gaps to the last byte, or else for one that fills the most bytes. Reservations that are not in the result get a
// place at the end.
func fillGaps(free []metadata.Extent, all []pending) []pending {
	f := fit{free: slices.Clone(free), all: all, used: make([]bool, len(all))}
	for _, e := range free {
		f.total += e.Len
	}
	f.search(0, 0)
	return f.best
}

// fit is a search with backtracking.
type fit struct {
	free   []metadata.Extent // remaining free parts of the gaps
	all    []pending
	used   []bool
	now    []pending // placed so far
	best   []pending
	most   int64 // bytes that best fills
	total  int64
	tries  int
	filled bool
}

// search fills the gaps from index gap on; sum bytes are already filled.
func (f *fit) search(gap int, sum int64) {
	if sum > f.most {
		f.most, f.best = sum, slices.Clone(f.now)
		f.filled = sum == f.total
	}
	if f.tries++; f.tries > fillTries {
		return
	}
	for ; gap < len(f.free); gap++ {
		was := f.free[gap]
		for i, p := range f.all {
			if f.used[i] || p.flight.Len > was.Len {
				continue
			}
			f.used[i] = true
			p.flight.Off = was.Off
			f.now = append(f.now, p)
			f.free[gap] = metadata.Extent{Off: was.Off + p.flight.Len, Len: was.Len - p.flight.Len}
			f.search(gap, sum+p.flight.Len)
			if f.filled {
				return
			}
			f.free[gap], f.used[i], f.now = was, false, f.now[:len(f.now)-1]
		}
	}
}
