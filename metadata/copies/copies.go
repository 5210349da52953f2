package copies

import (
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Write is one write to all copies of a part.
type Write struct {
	done   []cluster.Copy // current copies that have the bytes
	filled []cluster.Copy // copies being made that have the bytes, written after all of done
}

// Next returns the copies to write to now: the current copies that do not have the bytes yet, and once all have them,
// the copies being made. If it returns none, and there is a current copy, the write is complete.
func (w *Write) Next(c cluster.Copies) (next []cluster.Copy) {
	for _, x := range c.Current {
		if !slices.Contains(w.done, x) && !slices.Contains(w.filled, x) {
			next = append(next, x)
		}
	}
	if len(next) > 0 {
		w.filled = nil // copies being made must be written last
		return next
	}
	for _, x := range c.Filling {
		if !slices.Contains(w.filled, x) {
			next = append(next, x)
		}
	}
	return next
}

// Done records that x, one of Next(c), has the bytes.
func (w *Write) Done(c cluster.Copies, x cluster.Copy) {
	if slices.Contains(c.Current, x) {
		w.done = append(w.done, x)
		return
	}
	w.filled = append(w.filled, x)
}

// Fence decides which writes a node with copies accepts. Once a copy is being made from this node's copy, a writer must
// know of it: its map must not be older. It is safe for concurrent use.
type Fence struct {
	mu    sync.Mutex
	since metadata.Epoch // guarded by mu
}

// Raise makes the fence refuse writers with maps older than e.
func (f *Fence) Raise(e metadata.Epoch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since = max(f.since, e)
}

// Admits reports whether a writer with a map of the epoch e may write here, where the map is own. lease is the lease of
// this run of the node: before it began, own may lack a copy that was already made.
func (f *Fence) Admits(e metadata.Epoch, own cluster.Map, lease *Lease) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return lease.Begun() && e >= max(f.since, own.RestoredBy())
}

// Lease is the time during which a node knows that no leader has given it up. It is safe for concurrent use.
type Lease struct {
	mu    sync.Mutex
	until time.Time // guarded by mu
}

// Term returns the length of a lease if the leader gives a node up after the time down without a report. The difference
// allows for clocks that run at different speeds.
func Term(down time.Duration) time.Duration { return down * 3 / 4 }

// Renew records that the leader has recorded a report that was sent at sent, and that the node has the map of the
// answer.
func (l *Lease) Renew(sent time.Time, down time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if end := sent.Add(Term(down)); end.After(l.until) {
		l.until = end
	}
}

// Begun reports whether the lease was ever renewed.
func (l *Lease) Begun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.until.IsZero()
}

// Valid reports whether the lease lasts at now, so that no leader can have given the node up.
func (l *Lease) Valid(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.until)
}

// Source returns the node that makes the missing copies of a part.
func Source(c cluster.Copies) (metadata.NodeID, bool) {
	if len(c.Current) == 0 || len(c.Filling) == 0 {
		return 0, false
	}
	return c.Current[0].Node, true
}

// Serves reports whether a node may answer a reader whose map is of the epoch reader; self is the node's record in its
// own map.
func Serves(self cluster.Node, reader metadata.Epoch) bool {
	return self.State != cluster.Down && reader >= self.Since
}
