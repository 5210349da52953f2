package prefetch

import (
	"cmp"
	"slices"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// State returns the present state.
func (t *Tracker) State() accessplan.State {
	s := accessplan.State{
		Phase: t.phase, Reason: t.reason, Epoch: max(t.current, 0), Memory: t.held,
		Hits: t.count.hits, Misses: t.count.misses, Prefetched: t.count.bytes,
	}
	for _, r := range t.active {
		x := accessplan.RankState{Rank: r.id, Epoch: s.Epoch, Position: max(r.front, 0), Ahead: max(r.next-r.front, 0)}
		if x.Position >= r.length && t.next() >= 0 {
			x.Epoch, x.Position = t.next(), x.Position-r.length
		}
		s.Ranks = append(s.Ranks, x)
	}
	slices.SortFunc(s.Ranks, func(a, b accessplan.RankState) int { return cmp.Compare(a.Rank, b.Rank) })
	if all := s.Hits + s.Misses; all > 0 {
		s.HitRate = float64(s.Hits) / float64(all)
	}
	return s
}
