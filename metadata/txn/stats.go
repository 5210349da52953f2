package txn

import "sync/atomic"

type counters struct {
	alone, shared, again atomic.Int64
	committed, aborted   atomic.Int64
	prepares, commits    atomic.Int64
	moves, climbs        atomic.Int64
	recovered, gaveUp    atomic.Int64
}

// Stats is the counters of a coordinator.
type Stats struct {
	Alone     int64 `json:"alone"`     // operations of this home alone
	Shared    int64 `json:"shared"`    // operations done as transactions
	Again     int64 `json:"again"`     // attempts repeated after a conflict
	Committed int64 `json:"committed"` // attempts
	Aborted   int64 `json:"aborted"`   // attempts, including refused ones and those without anything to do
	Prepares  int64 `json:"prepares"`  // calls to other homes
	Commits   int64 `json:"commits"`   // calls to other homes
	Moves     int64 `json:"moves"`     // rename locks taken
	Climbs    int64 `json:"climbs"`    // calls for paths up to the root
	Recovered int64 `json:"recovered"` // outcomes asked for
	GaveUp    int64 `json:"gave_up"`   // transactions of coordinators that are down
	InDoubt   int64 `json:"in_doubt"`  // now: transactions of others that are prepared here
	Untold    int64 `json:"untold"`    // now: undelivered decisions
}

// Stats returns the counters.
func (c *Coordinator) Stats() Stats {
	s := &c.stats
	c.mu.Lock()
	untold := len(c.left)
	c.mu.Unlock()
	return Stats{
		Alone: s.alone.Load(), Shared: s.shared.Load(), Again: s.again.Load(),
		Committed: s.committed.Load(), Aborted: s.aborted.Load(),
		Prepares: s.prepares.Load(), Commits: s.commits.Load(),
		Moves: s.moves.Load(), Climbs: s.climbs.Load(),
		Recovered: s.recovered.Load(), GaveUp: s.gaveUp.Load(),
		InDoubt: int64(len(c.store.InDoubt())), Untold: int64(untold),
	}
}
