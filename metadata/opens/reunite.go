package opens

import (
	"cmp"
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// gaps is what is free between size and the last of the extents.
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

// fitTries bounds the search of fitAll.
const fitTries = 10_000

// fitAll puts pending appends into the gaps. A gap is the places of some of
// them, one behind the other, or of one whose client is lost, and an append
// that had no place yet is in none: so it looks for some that fill the gaps to
// the last byte, and if there are none, for the most that it can fill. What is
// not in the result gets a place at the end.
func fitAll(free []metadata.Extent, all []pending) []pending {
	f := fit{free: slices.Clone(free), all: all, used: make([]bool, len(all))}
	for _, e := range free {
		f.total += e.Len
	}
	f.search(0, 0)
	return f.best
}

// fit is a search with backtracking.
type fit struct {
	free   []metadata.Extent // what is left of the gaps
	all    []pending
	used   []bool
	now    []pending // with their places
	best   []pending
	most   int64 // bytes that best fills
	total  int64
	tries  int
	filled bool
}

// search fills the gaps from the one numbered gap on; sum bytes are filled.
func (f *fit) search(gap int, sum int64) {
	if sum > f.most {
		f.most, f.best = sum, slices.Clone(f.now)
		f.filled = sum == f.total
	}
	if f.tries++; f.tries > fitTries {
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
