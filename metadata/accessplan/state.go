package accessplan

import (
	"cmp"
	"slices"
)

// Phase describes whether readers follow a plan.
type Phase string

// The phases of a plan.
const (
	Waiting   Phase = "waiting"   // nothing has been read yet
	Following Phase = "following" // reads follow the plan
	Stale     Phase = "stale"     // reads do not follow it, or it does not match the dataset: no prefetch
	Off       Phase = "off"       // prefetch is disabled
)

// State describes how a plan is followed: on one node, or merged over the job.
type State struct {
	Digest string      `json:"digest"`
	Phase  Phase       `json:"phase"`
	Reason string      `json:"reason,omitempty"` // for Stale and Off
	Epoch  int         `json:"epoch"`
	Ranks  []RankState `json:"ranks,omitempty"`
	// Hits counts reads that were prefetched, Misses all others; both are estimated from samples, because the daemon
	// does not see reads from the page cache.
	Hits       int64   `json:"hits"`
	Misses     int64   `json:"misses"`
	HitRate    float64 `json:"hit_rate"`
	Prefetched int64   `json:"prefetched_bytes"`
	Memory     int64   `json:"memory"` // bytes prefetched and not read yet
}

// RankState is the progress of a rank in its epoch.
type RankState struct {
	Rank     int    `json:"rank"`
	Node     string `json:"node,omitempty"`
	Epoch    int    `json:"epoch"`
	Position int    `json:"position"` // files read
	Ahead    int    `json:"ahead"`    // files prefetched beyond Position
}

// Position is a position that a rank has reported.
type Position struct {
	Dataset  string `json:"dataset"`
	Digest   string `json:"digest,omitempty"` // of the plan; "": the plan of the dataset
	Rank     int    `json:"rank"`
	Epoch    int    `json:"epoch"`
	Position int    `json:"position"` // files that the rank has read
}

// Merge merges the states of a plan on all nodes. A plan that is stale on one node and followed
// on another is followed.
func Merge(states []State) State {
	var m State
	order := []Phase{Following, Stale, Off, Waiting}
	for i, s := range states {
		if i == 0 || slices.Index(order, s.Phase) < slices.Index(order, m.Phase) {
			m.Digest, m.Phase, m.Reason = s.Digest, s.Phase, s.Reason
		}
		m.Epoch = max(m.Epoch, s.Epoch)
		m.Ranks = append(m.Ranks, s.Ranks...)
		m.Hits, m.Misses = m.Hits+s.Hits, m.Misses+s.Misses
		m.Prefetched, m.Memory = m.Prefetched+s.Prefetched, m.Memory+s.Memory
	}
	// A rank that two nodes report has moved: the later position counts.
	slices.SortStableFunc(m.Ranks, func(a, b RankState) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(b.Epoch, a.Epoch), cmp.Compare(b.Position, a.Position))
	})
	m.Ranks = slices.CompactFunc(m.Ranks, func(a, b RankState) bool { return a.Rank == b.Rank })
	if all := m.Hits + m.Misses; all > 0 {
		m.HitRate = float64(m.Hits) / float64(all)
	}
	return m
}
