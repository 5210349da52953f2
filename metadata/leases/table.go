package leases

import (
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Term is how long a lease holds, and how long a directory that was changed by
// one node is not leased to others.
const Term = time.Second

// Table is the promises that one home has made.
type Table struct {
	now func() time.Time

	mu     sync.Mutex
	known  map[metadata.LeaseKey]*record // under mu
	swept  time.Time                     // under mu: when what is over was dropped
	strict time.Time                     // under mu: until then, a run before this one may have made promises
}

// record is what is known of one key: who was promised it, and who has changed
// it.
type record struct {
	holders []Holder
	by      metadata.NodeID // who has changed it last
	at      time.Time       // when; zero is never
	others  time.Time       // when anybody but him has changed it last
}

// Holder is a node that was promised something.
type Holder struct {
	Node  metadata.NodeID
	Until time.Time
}

// NewTable makes an empty table. After is when promises of an earlier run of
// this home are over; the zero time if there was none.
func NewTable(now func() time.Time, after time.Time) *Table {
	return &Table{now: now, known: make(map[metadata.LeaseKey]*record), swept: now(), strict: after}
}

// Grant promises the node to that it will be told before k is changed by
// another, and for how long. Zero is no promise.
func (t *Table) Grant(k metadata.LeaseKey, to metadata.NodeID) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.sweep(now)
	r := t.known[k]
	if r == nil {
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

// Change notes that the node by has changed what keys name. It returns the
// promises that were in force, without those of the node itself, and forgets
// them: they must be told, or waited for, before the change is acknowledged.
// Nothing is acknowledged before the time after, either.
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
		kept := r.holders[:0]
		for _, h := range r.holders {
			switch {
			case h.Node == by:
				kept = append(kept, h)
			case h.Until.After(now):
				if tell == nil {
					tell = make(map[Holder][]metadata.LeaseKey)
				}
				tell[h] = append(tell[h], k)
			}
		}
		r.holders = kept
	}
	if t.strict.After(now) {
		after = t.strict
	}
	return tell, after
}

// sweep drops, once a term, what is over.
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

// Len is how many keys are known.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.known)
}
