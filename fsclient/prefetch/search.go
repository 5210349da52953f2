package prefetch

import (
	"maps"
	"slices"
	"time"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

const (
	history     = 64  // reads that a search keeps
	lookback    = 32  // preceding reads that a read may follow
	leastReads  = 16  // for a conclusion
	lookEvery   = 4   // reads between two looks while waiting
	seldom      = 64  // likewise while stale
	staleAfter  = 256 // reads that fit no epoch
	betweenMore = 4   // factor between two epochs, where validation may read, and at first
	scanEvery   = 8   // looks per attempt at one of mostScan epochs
	mostScan    = 128 // epochs to try when the near ones do not fit
	leastStrong = 0.6 // share of the reads that must follow another one
)

// search finds the epoch of the last reads.
type search struct {
	last   []int // files read, oldest first
	before int   // the epoch followed before; -1: none
	middle bool  // the epoch was lost in its first half
	reads  int   // since the search began
	looks  int
	scan   int // the next epoch to try beyond the near ones
}

func (s *search) add(file int) {
	if len(s.last) == history {
		s.last = slices.Delete(s.last, 0, 1)
	}
	s.last = append(s.last, file)
	s.reads++
}

func (s *search) begin(before int, through bool) {
	// Keep only the last reads, those that no longer fit.
	if n := len(s.last) - leastReads; n > 0 {
		s.last = slices.Delete(s.last, 0, n)
	}
	s.before, s.middle, s.reads, s.looks, s.scan = before, !through, 0, 0, 0
}

// patience returns how many reads may fit no epoch before the plan is stale.
func (s *search) patience() int {
	if s.middle {
		return staleAfter
	}
	return staleAfter * betweenMore
}

// due reports whether to look now.
func (s *search) due(stale bool) bool {
	every := lookEvery
	if stale {
		every = seldom
	}
	return len(s.last) >= leastReads && s.reads%every == 0
}

// candidates returns the epochs to try, the likely ones first.
func (s *search) candidates() []int {
	all := []int{0, 1}
	if s.before >= 0 {
		all = []int{s.before + 1, s.before, s.before + 2, 0}
	}
	if s.looks++; s.looks%scanEvery == 0 || s.reads%seldom == 0 {
		all = append(all, s.scan)
		s.scan = (s.scan + 1) % mostScan
	}
	return all
}

// look tries to find the place of the last reads in the plan.
func (t *Tracker) look(now time.Time) {
	s := &t.search
	if !s.due(t.phase == accessplan.Stale) {
		return
	}
	if t.ranks == 0 && !t.learnRanks() {
		t.exhaust()
		return
	}
	for _, n := range s.candidates() {
		e := t.epoch(n)
		if e == nil {
			continue
		}
		if places := s.match(e, t.order.Files()); places != nil {
			t.found(n, places, now)
			return
		}
	}
	t.exhaust()
}

// exhaust makes the plan stale after many reads that fit no epoch.
func (t *Tracker) exhaust() {
	if t.search.reads >= t.search.patience() {
		t.phase, t.reason = accessplan.Stale, OtherOrder
	}
}

// match returns the positions of the last reads by rank, if most reads follow another one by a few positions.
func (s *search) match(e Epoch, files int) map[int][]int {
	few := min(max(files/128, 2), probeEvery*2)
	type place struct{ rank, pos int }
	var ps []place
	places := make(map[int][]int)
	for _, f := range s.last {
		r, pos, ok := e.Find(f)
		if !ok {
			r = -1
		}
		ps = append(ps, place{r, pos})
	}
	follow := make([]bool, len(ps))
	n := 0
	for i, p := range ps {
		for _, q := range ps[max(i-lookback, 0):i] {
			if p.rank >= 0 && q.rank == p.rank && p.pos > q.pos && p.pos-q.pos <= few {
				follow[i] = true
			}
		}
		if follow[i] {
			n++
			places[p.rank] = append(places[p.rank], p.pos)
		}
	}
	chance := min(float64(few*lookback)/float64(files), 1)
	if float64(n) < max(leastStrong, chance+(1-chance)/2)*float64(len(ps)) {
		return nil
	}
	maps.DeleteFunc(places, func(_ int, at []int) bool { return len(at) < 2 })
	if len(places) == 0 {
		return nil
	}
	return places
}

// found starts to follow the epoch of the last reads.
func (t *Tracker) found(n int, places map[int][]int, now time.Time) {
	before, atStart, again := t.search.before, true, t.repeat
	t.start(n)
	for id, at := range places {
		at = central(at, t.epoch(n).Len(id)/4)
		r := t.activate(id, slices.Min(at), now)
		for _, p := range at {
			r.read(p, false, now)
		}
		r.at, r.pace = now, 0
		atStart = atStart && slices.Min(at) < r.length/2
	}
	if n == before && (again || atStart && !t.search.middle) {
		t.repeat, t.reason = true, SameOrder
	}
}

// central returns the positions that are not far from the median.
func central(at []int, far int) []int {
	sorted := slices.Sorted(slices.Values(at))
	median := sorted[len(sorted)/2]
	return slices.DeleteFunc(slices.Clone(at), func(p int) bool { return p < median-far || p > median+far })
}

// learnRanks learns the number of ranks from the distances between reads: it is the shortest distance at which most
// reads follow another one. Until it is known, a plan counts as having one rank.
func (t *Tracker) learnRanks() bool {
	for _, n := range t.search.candidates() {
		e := t.epoch(n)
		if e == nil {
			continue
		}
		if stride := t.search.stride(e); stride > 0 {
			t.ranks, t.epochs = stride, nil
			return true
		}
	}
	return false
}

// stride returns the shortest distance at which most of the last reads follow another one; 0 if there is none.
func (s *search) stride(e Epoch) int {
	votes, turns := make(map[int]int), []int(nil)
	for _, f := range s.last {
		_, at, ok := e.Find(f)
		if !ok {
			continue
		}
		for _, q := range turns {
			if q < at {
				votes[at-q]++
			}
		}
		turns = append(turns, at)
	}
	least := 0
	for d, n := range votes {
		if n*5 >= len(turns)*3 && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}
