package accessplan

import (
	"fmt"
	"syscall"
)

// Epoch is the order in which the ranks read the files in one epoch.
type Epoch struct {
	ranks int
	order []uint32 // numbers of files; rank r reads order[r], order[r+ranks], ...
	at    []uint32 // by number: its first place in order, plus one
}

// Epoch returns the order of epoch e for a dataset of n files. It costs as much as a permutation of n; for the kinds
// random and loader, the generator must also be advanced past the earlier epochs.
func (p *Plan) Epoch(e, n int) (*Epoch, error) {
	switch {
	case e < 0 || p.Epochs > 0 && e >= p.Epochs || p.FirstOnly && e > 0:
		return nil, fmt.Errorf("access plan: no epoch %d: %w", e, syscall.ERANGE)
	case p.Files > 0 && p.Files != n:
		return nil, fmt.Errorf("access plan: the program has %d files and the dataset %d: is root= the directory that the program reads? %w", p.Files, n, syscall.ESTALE)
	}
	order, err := p.order(e, n)
	if err != nil {
		return nil, err
	}
	x := &Epoch{ranks: max(p.Ranks, 1), at: make([]uint32, n)}
	x.order = divide(order, x.ranks, p.DropLast, p.Kind == Torch)
	for i, number := range x.order {
		if x.at[number] == 0 {
			x.at[number] = uint32(i) + 1
		}
	}
	return x, nil
}

// order returns the order of all files before they are divided among the ranks; for the kind Chunk each rank's files
// are already in place.
func (p *Plan) order(e, n int) ([]uint32, error) {
	switch {
	case n <= 0 || n > MaxFiles:
		return nil, fmt.Errorf("access plan: a dataset of %d files has no order: %w", n, syscall.EINVAL)
	case p.Kind == List && len(p.Indices) > 0:
		for i, number := range p.Indices {
			if int(number) >= n {
				return nil, fmt.Errorf("access plan: index %d is file %d, and the dataset has %d: %w", i, number, n, syscall.EINVAL)
			}
		}
		return p.Indices, nil
	case p.Kind == Torch && p.Shuffle:
		return RandPerm(p.Seed+uint64(e), n), nil
	case p.Kind == Chunk:
		return p.chunks(e, n), nil
	case p.Kind == Random || p.Kind == Loader:
		// After RandomSampler has returned the last file, it draws one more permutation, which it does not use.
		g, each := newTwister(uint32(p.Seed)), 2*draws(n)
		if p.Kind == Loader {
			each += 2
		}
		g.skip(each * uint64(e))
		if p.Kind == Loader {
			g.next64()
		}
		return g.perm(n), nil
	}
	all := make([]uint32, n)
	for i := range all {
		all[i] = uint32(i)
	}
	return all, nil
}

// divide makes the length of an order a multiple of ranks, as DistributedSampler does: files at the end are repeated or
// dropped.
func divide(order []uint32, ranks int, dropLast, pad bool) []uint32 {
	switch n := len(order); {
	case n%ranks == 0:
		return order
	case dropLast:
		return order[:n/ranks*ranks]
	case pad:
		out := append(make([]uint32, 0, n+ranks), order...)
		for i := 0; len(out)%ranks != 0; i++ {
			out = append(out, order[i%n])
		}
		return out
	}
	return order
}

// Len returns the number of files that a rank reads.
func (x *Epoch) Len(rank int) int {
	if rank < 0 || rank >= x.ranks {
		return 0
	}
	return (len(x.order) - rank + x.ranks - 1) / x.ranks
}

// At returns the number of the file that a rank reads at a position, from 0 to Len(rank)-1.
func (x *Epoch) At(rank, pos int) (number int) { return int(x.order[rank+pos*x.ranks]) }

// Find returns the rank that reads a file first, and its position; ok is false if no rank does.
func (x *Epoch) Find(number int) (rank, pos int, ok bool) {
	if number < 0 || number >= len(x.at) || x.at[number] == 0 {
		return 0, 0, false
	}
	i := int(x.at[number]) - 1
	return i % x.ranks, i / x.ranks, true
}
