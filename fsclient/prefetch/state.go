package prefetch

import (
	"cmp"
	"slices"
)

// RankState is where a rank is.
type RankState struct {
	Rank     int `json:"rank"`
	Position int `json:"position"`
	Ahead    int `json:"ahead"` // positions beyond it that are fetched or under way
}

// State is what a tracker knows.
type State struct {
	Phase  Phase       `json:"phase"`
	Reason string      `json:"reason,omitempty"`
	Epoch  int         `json:"epoch"`
	Ranks  []RankState `json:"ranks,omitempty"`
	Memory int64       `json:"memory"` // bytes fetched and not read yet
	Counters
}

// State returns what the tracker knows now.
func (t *Tracker) State() State {
	s := State{Phase: t.phase, Reason: t.reason, Epoch: max(t.current, 0), Memory: t.held, Counters: t.count}
	for _, r := range t.active {
		s.Ranks = append(s.Ranks, RankState{Rank: r.id, Position: min(r.front, r.length), Ahead: max(r.next-r.front, 0)})
	}
	slices.SortFunc(s.Ranks, func(a, b RankState) int { return cmp.Compare(a.Rank, b.Rank) })
	return s
}
