package txn

import "sync/atomic"

type counters struct {
	local, distributed, retries atomic.Int64
	committed, aborted          atomic.Int64
	prepares, commits           atomic.Int64
	renameLocks, ancestorCalls  atomic.Int64
	recovered, gaveUp           atomic.Int64
}

// Stats is the counters of a coordinator.
type Stats struct {
	Local         int64 `json:"local"`          // operations on this home only
	Distributed   int64 `json:"distributed"`    // operations on several homes, as transactions
	Retries       int64 `json:"retries"`        // attempts repeated after a conflict
	Committed     int64 `json:"committed"`      // attempts
	Aborted       int64 `json:"aborted"`        // attempts, including refused and empty ones
	Prepares      int64 `json:"prepares"`       // calls to other homes
	Commits       int64 `json:"commits"`        // calls to other homes
	RenameLocks   int64 `json:"rename_locks"`   // rename locks taken
	AncestorCalls int64 `json:"ancestor_calls"` // calls that look up the path to the root
	Recovered     int64 `json:"recovered"`      // outcomes asked for
	GaveUp        int64 `json:"gave_up"`        // transactions of coordinators that are down
	InDoubt       int64 `json:"in_doubt"`       // now: transactions of others that are prepared here
	Undelivered   int64 `json:"undelivered"`    // now: undelivered decisions
}

// Stats returns the counters.
func (c *Coordinator) Stats() Stats {
	s := &c.stats
	c.mu.Lock()
	undelivered := len(c.left)
	c.mu.Unlock()
	return Stats{
		Local: s.local.Load(), Distributed: s.distributed.Load(), Retries: s.retries.Load(),
		Committed: s.committed.Load(), Aborted: s.aborted.Load(),
		Prepares: s.prepares.Load(), Commits: s.commits.Load(),
		RenameLocks: s.renameLocks.Load(), AncestorCalls: s.ancestorCalls.Load(),
		Recovered: s.recovered.Load(), GaveUp: s.gaveUp.Load(),
		InDoubt: int64(len(c.store.InDoubt())), Undelivered: int64(undelivered),
	}
}
