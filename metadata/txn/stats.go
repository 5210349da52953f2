package txn

import "sync/atomic"

type counters struct{ prepares, commits atomic.Int64 }

// Stats has the counters of a coordinator.
type Stats struct {
	Prepares    int64 // calls to other homes
	Commits     int64 // calls to other homes
	InDoubt     int64 // now: transactions of others prepared here
	Undelivered int64 // now: undelivered decisions
}

// Stats returns the counters.
func (c *Coordinator) Stats() Stats {
	c.mu.Lock()
	undelivered := len(c.left)
	c.mu.Unlock()
	return Stats{
		Prepares: c.stats.prepares.Load(), Commits: c.stats.commits.Load(),
		InDoubt: int64(len(c.store.InDoubt())), Undelivered: int64(undelivered),
	}
}
