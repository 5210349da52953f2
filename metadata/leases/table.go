package leases

import (
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Term is the length of a lease, and how long what one node has changed is not leased to
// others.
const Term = time.Second

// maxKnown bounds the keys with leases: further ones get none. Keys that were changed count, but are
// always recorded.
const maxKnown = 1 << 16

// Table is the leases granted by one home.
type Table struct {
	now func() time.Time

	mu     sync.Mutex
	known  map[metadata.LeaseKey]*record // under mu
	swept  time.Time                     // guarded by mu: last removal of expired leases
	strict time.Time                     // guarded by mu: until then leases of an earlier run may be valid
}

// record is the holders and the last changes of one key.
type record struct {
	holders []Holder
	by      metadata.NodeID // author of the last change
	at      time.Time       // time of the last change; zero is never
	others  time.Time       // time of the last change by another node
}

// Holder is a node with a lease.
type Holder struct {
	Node  metadata.NodeID
	Until time.Time
}

// NewTable returns an empty table. Leases of an earlier run of this home end at after; zero if
// there was none.
func NewTable(now func() time.Time, after time.Time) *Table {
	return &Table{now: now, known: make(map[metadata.LeaseKey]*record), swept: now(), strict: after}
}

// Grant grants a lease on k to the node to, for an answer that was read before, and returns its term.
// Zero is no lease.
func (t *Table) Grant(k metadata.LeaseKey, to metadata.NodeID) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.sweep(now)
	r := t.known[k]
	switch {
	case r == nil && len(t.known) >= maxKnown:
		return 0
	case r == nil:
		r = &record{}
		t.known[k] = r
	}
	changed := r.at
	if r.by == to {
		changed = r.others
	}
	if !changed.IsZero() && now.Sub(changed) < Term {
		return 0
	}
	until := now.Add(Term)
	for i := range r.holders {
		if r.holders[i].Node == to {
			r.holders[i].Until = until
			return Term
		}
	}
	r.holders = append(r.holders, Holder{to, until})
	return Term
}

// Change records that the node by has changed keys. It returns the leases of other nodes: they must
// be recalled, or have ended, before the change is acknowledged; and the time after must have come.
// Each is returned by every Change until Recalled, so that no change is acknowledged while the recall
// for another is in flight.
func (t *Table) Change(by metadata.NodeID, keys ...metadata.LeaseKey) (tell map[Holder][]metadata.LeaseKey, after time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.sweep(now)
	for _, k := range keys {
		r := t.known[k]
		if r == nil {
			r = &record{}
			t.known[k] = r
		}
		if r.by != by || r.at.IsZero() {
			r.others = r.at
		}
		r.by, r.at = by, now
		for _, h := range r.holders {
			if h.Node == by || !h.Until.After(now) {
				continue
			}
			if tell == nil {
				tell = make(map[Holder][]metadata.LeaseKey)
			}
			tell[h] = append(tell[h], k)
		}
	}
	if t.strict.After(now) {
		after = t.strict
	}
	return tell, after
}

// Recalled notes that h has dropped its leases on keys.
func (t *Table) Recalled(h Holder, keys []metadata.LeaseKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range keys {
		r := t.known[k]
		if r == nil {
			continue
		}
		for i := range r.holders {
			if r.holders[i] == h {
				r.holders = append(r.holders[:i], r.holders[i+1:]...)
				break
			}
		}
	}
}

// sweep drops expired records, once a term.
func (t *Table) sweep(now time.Time) {
	if now.Sub(t.swept) < Term {
		return
	}
	t.swept = now
	for k, r := range t.known {
		kept := r.holders[:0]
		for _, h := range r.holders {
			if h.Until.After(now) {
				kept = append(kept, h)
			}
		}
		r.holders = kept
		if len(kept) == 0 && now.Sub(r.at) >= Term {
			delete(t.known, k)
		}
	}
}
