package copies

import (
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Write is one write to all copies of a range.
type Write struct {
	done []metadata.NodeID
}

// Missing returns the copies in current that do not have the bytes yet. Without any, and with one current
// copy or more, the write is complete.
func (w *Write) Missing(current []metadata.NodeID) []metadata.NodeID {
	var ids []metadata.NodeID
	for _, id := range current {
		if !slices.Contains(w.done, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Done notes that the copy id has the bytes.
func (w *Write) Done(id metadata.NodeID) { w.done = append(w.done, id) }

// Lease is the time for which a node knows that no leader has given it up. It is safe for concurrent use.
type Lease struct {
	mu    sync.Mutex
	until time.Time // guarded by mu
}

// Term is how long a lease lasts where the leader gives a node up after down without a report. The rest is for
// clocks that run at different speeds.
func Term(down time.Duration) time.Duration { return down * 3 / 4 }

// Renew notes that the leader has recorded a report that was sent at sent, and that the node has the map of
// the answer.
func (l *Lease) Renew(sent time.Time, down time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if end := sent.Add(Term(down)); end.After(l.until) {
		l.until = end
	}
}

// Valid reports whether no leader can have given the node up by now.
func (l *Lease) Valid(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.until)
}

// Serves reports whether a node may answer a reader whose map is of the epoch reader, by its own record self
// in its own map.
func Serves(self cluster.Node, reader metadata.Epoch) bool {
	return self.State != cluster.Down && reader >= self.Since
}
