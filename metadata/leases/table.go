package leases

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Term is the length of a session, and how long a record that one node has changed is not leased to others.
const Term = time.Second

// KeyTerm is the length of a lease whose session is renewed.
const KeyTerm = 10 * Term

// maxKnown limits the keys with leases: further keys get none. Changed keys count, but are always recorded. Above half
// the limit, leases are as short as a session.
const maxKnown = 1 << 16

// maxHeld limits the leases of all nodes together; each takes 64 bytes.
const maxHeld = 1 << 20

// Table has the leases granted by one home.
type Table struct {
	now func() time.Time

	mu     sync.Mutex
	known  map[metadata.LeaseKey]*record // under mu
	held   int                           // under mu: leases in known
	nodes  map[metadata.NodeID]*session  // guarded by mu
	last   uint64                        // guarded by mu: the newest session
	swept  time.Time                     // guarded by mu: last removal of expired leases
	strict time.Time                     // guarded by mu: leases of an earlier run may be valid until then
}

// session groups the leases of one node. Any request of the node renews it, unless a recall has not been answered: then
// it ends, with all its leases.
type session struct {
	id      uint64
	until   time.Time
	recalls int // recalls in flight
}

// record has the holders and the last changes of one key.
type record struct {
	holders []holding       // by node
	by      metadata.NodeID // author of the last change
	at      time.Time       // time of the last change; zero is never
	others  time.Time       // time of the last change by another node
}

// holding is a lease of one key.
type holding struct {
	node    metadata.NodeID
	session uint64
	asked   time.Time
	until   time.Time
}

// Holder is a node with leases, until its session ends.
type Holder struct {
	Node    metadata.NodeID
	Session uint64
	Until   time.Time
	at      time.Time // time of the change
}

// NewTable returns an empty table. Leases of an earlier run of this home end at after; zero if there was none.
func NewTable(now func() time.Time, after time.Time) *Table {
	return &Table{
		now: now, swept: now(), strict: after, last: rand.Uint64(), // no session of an earlier run has its number
		known: make(map[metadata.LeaseKey]*record), nodes: make(map[metadata.NodeID]*session),
	}
}

// Request is a node's request for records that can be leased, with its session and the term of the session.
type Request struct {
	Node    metadata.NodeID
	Session uint64
	Term    time.Duration
	at      time.Time
}

// Ask must be called before the answer to a request is read. It begins a session if the node has none.
func (t *Table) Ask(of metadata.NodeID) Request {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	s := t.nodes[of]
	if s == nil || !s.until.After(now) {
		t.last++
		s = &session{id: t.last}
		t.nodes[of] = s
	}
	return Request{of, s.id, s.renew(now), now}
}

// Renew returns the new term of a session; zero if it has ended.
func (t *Table) Renew(of metadata.NodeID, id uint64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	s := t.nodes[of]
	if s == nil || s.id != id || !s.until.After(now) {
		return 0
	}
	return s.renew(now)
}

// renew returns the term from now on.
func (s *session) renew(now time.Time) time.Duration {
	if s.recalls == 0 {
		s.until = now.Add(Term)
	}
	return s.until.Sub(now)
}

// alive returns the session of a valid lease, else nil; t.mu is held.
func (t *Table) alive(h holding, now time.Time) *session {
	s := t.nodes[h.node]
	if s == nil || s.id != h.session || !s.until.After(now) || !h.until.After(now) {
		return nil
	}
	return s
}

// Grant grants a lease on k in the answer to a request, and returns its term. Zero is no lease, for example because
// another node may have changed the record since it was read.
func (t *Table) Grant(k metadata.LeaseKey, q Request) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.sweep(now)
	r, term := t.known[k], KeyTerm
	if len(t.known) >= maxKnown/2 {
		term = Term
	}
	switch {
	case r == nil && len(t.known) >= maxKnown:
		return 0
	case r == nil:
		r = &record{}
		t.known[k] = r
	}
	changed := r.at
	if r.by == q.Node && r.at.Before(q.at) { // else the record that was read may be older
		changed = r.others
	}
	h := holding{q.Node, q.Session, q.at, now.Add(term)}
	if t.alive(h, now) == nil || now.Sub(q.at) >= Term || !changed.IsZero() && now.Sub(changed) < Term {
		return 0
	}
	i, has := slices.BinarySearchFunc(r.holders, q.Node, func(h holding, id metadata.NodeID) int { return cmp.Compare(h.node, id) })
	switch {
	case has:
		if was := r.holders[i]; was.session == q.Session && was.until.After(h.until) { // this lease may last longer
			h.until = was.until
		}
		r.holders[i] = h
	case t.held >= maxHeld:
		return 0
	default:
		r.holders = slices.Insert(r.holders, i, h)
		t.held++
	}
	return term
}

// Change records that the node by has changed keys in a call that began at began. It returns the leases of other nodes,
// and those that by has requested since: before the change is acknowledged, they must be recalled or have ended, and
// the time after must have passed. Every Change returns a lease until Recalled, so that no change is acknowledged while
// the recall for another one is in flight. Recalled must be called once for each holder.
func (t *Table) Change(by metadata.NodeID, began time.Time, keys ...metadata.LeaseKey) (tell map[Holder][]metadata.LeaseKey, after time.Time) {
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
			s := t.alive(h, now)
			if s == nil || h.node == by && h.asked.Before(began) {
				continue
			}
			if tell == nil {
				tell = make(map[Holder][]metadata.LeaseKey)
			}
			to := Holder{h.node, s.id, s.until, now}
			if tell[to] == nil {
				s.recalls++
			}
			tell[to] = append(tell[to], k)
		}
	}
	if t.strict.After(now) {
		after = t.strict
	}
	return tell, after
}

// Recalled records that h has dropped its leases on keys, or that its session has ended. It keeps leases that h has
// requested since.
func (t *Table) Recalled(h Holder, keys []metadata.LeaseKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.nodes[h.Node]; s != nil && s.id == h.Session {
		s.recalls--
	}
	for _, k := range keys {
		r := t.known[k]
		if r == nil {
			continue
		}
		t.drop(r, func(l holding) bool { return l.node == h.Node && l.session == h.Session && l.asked.Before(h.at) })
	}
}

func (t *Table) drop(r *record, gone func(holding) bool) {
	n := len(r.holders)
	r.holders = slices.DeleteFunc(r.holders, gone)
	t.held -= n - len(r.holders)
}

// Of returns the keys of a directory that may be leased: its attributes and its entries.
func (t *Table) Of(dir metadata.Ino) (keys []metadata.LeaseKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, r := range t.known {
		if k.Ino == dir && len(r.holders) > 0 {
			keys = append(keys, k)
		}
	}
	return keys
}

// sweep drops expired records, once a term.
func (t *Table) sweep(now time.Time) {
	if now.Sub(t.swept) < Term {
		return
	}
	t.swept = now
	for k, r := range t.known {
		t.drop(r, func(h holding) bool { return t.alive(h, now) == nil })
		if len(r.holders) == 0 && now.Sub(r.at) >= Term {
			delete(t.known, k)
		}
	}
	for id, s := range t.nodes {
		if !s.until.After(now) {
			delete(t.nodes, id)
		}
	}
}
