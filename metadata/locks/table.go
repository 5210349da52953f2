package locks

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// staleAfter is how long a waiter that does not repeat its request keeps its place in the queue.
const staleAfter = 20 * time.Second

// lateFor is longer than a request can be in transit.
const lateFor = 2 * time.Minute

// Table has the locks on the files of one home, and their queues. It does no I/O and has no clock.
type Table struct {
	wake func(node metadata.NodeID, waiter uint64) // must not block or call the table

	mu      sync.Mutex
	files   map[metadata.Ino]*file
	waits   map[owner][]*waiter // waiters by owner
	holds   map[owner]int       // locks of each owner
	version uint64
	over    withdrawn
}

// withdrawn has the cancelled waiters. A delayed request of one may still arrive, and must be neither queued nor
// granted. Waiter numbers are unique over all clients of a node, earlier ones included.
type withdrawn struct {
	since map[numbered]time.Time
	swept time.Time
}

type numbered struct {
	node metadata.NodeID
	id   uint64
}

// add adds a waiter, and drops waiters whose requests can no longer arrive.
func (o *withdrawn) add(n numbered, now time.Time) {
	if now.Sub(o.swept) > lateFor {
		maps.DeleteFunc(o.since, func(_ numbered, at time.Time) bool { return now.Sub(at) > lateFor })
		o.swept = now
	}
	if o.since == nil {
		o.since = make(map[numbered]time.Time)
	}
	o.since[n] = now
}

func (o *withdrawn) has(n numbered) bool {
	_, ok := o.since[n]
	return ok
}

type file struct {
	held  []held
	queue []*waiter // first come, first served
}

// waiter is a queued request.
type waiter struct {
	held
	ino   metadata.Ino
	id    uint64
	asked time.Time
}

// NewTable returns an empty table. Its versions start after first. It calls wake when a waiter was granted.
func NewTable(first uint64, wake func(metadata.NodeID, uint64)) *Table {
	return &Table{
		wake: wake, version: first,
		files: make(map[metadata.Ino]*file), waits: make(map[owner][]*waiter), holds: make(map[owner]int),
	}
}

// Lock implements metadata.Locks for the node's client.
func (t *Table) Lock(node metadata.NodeID, q metadata.LockReq, now time.Time) (metadata.LockAnswer, error) {
	if q.Start > q.End || q.End > metadata.MaxLockEnd || q.Type > metadata.WriteLock || q.Kind > metadata.FlockLock {
		return metadata.LockAnswer{}, fmt.Errorf("lock of type %d on %d to %d: %w", q.Type, q.Start, q.End, syscall.EINVAL)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.file(q.Ino)
	defer t.tidy(q.Ino, f)
	l := held{node, q.Lock}
	w := t.find(f, node, q.Waiter)
	switch {
	case q.Cancel:
		if q.Waiter != 0 {
			t.over.add(numbered{node, q.Waiter}, now)
		}
		return t.cancel(f, l, w), nil
	case q.Waiter != 0 && t.over.has(numbered{node, q.Waiter}):
		return metadata.LockAnswer{}, fmt.Errorf("lock on %v, whose request was cancelled: %w", q.Ino, syscall.EINTR)
	case q.Type == metadata.Unlocked:
		return t.grant(q.Ino, f, l, nil, now), nil
	case !f.blocked(l) && (w != nil || q.Waiter == 0 || !t.shouldQueue(f, l)):
		return t.grant(q.Ino, f, l, w, now), nil
	case q.Waiter == 0:
		return metadata.LockAnswer{}, fmt.Errorf("lock on %v: %w", q.Ino, syscall.EAGAIN)
	case q.Kind == metadata.PosixLock && t.deadlock(f, l):
		t.unwait(f, w)
		return metadata.LockAnswer{}, fmt.Errorf("lock on %v: %w", q.Ino, syscall.EDEADLK)
	}
	if w == nil {
		w = &waiter{held: l, ino: q.Ino, id: q.Waiter}
		f.queue = append(f.queue, w)
		t.waits[l.owner()] = append(t.waits[l.owner()], w)
	}
	w.asked = now
	return metadata.LockAnswer{}, nil
}

// Test returns the first conflicting lock, by position in the file.
func (t *Table) Test(node metadata.NodeID, ino metadata.Ino, l metadata.Lock) (metadata.NodeID, metadata.Lock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := held{node, metadata.Lock{Kind: l.Kind}}
	if f := t.files[ino]; f != nil {
		for _, h := range f.held {
			if conflict(h, held{node, l}) && (first.Type == metadata.Unlocked || h.Start < first.Start) {
				first = h
			}
		}
	}
	return first.node, first.Lock
}

// Resume restores a node's locks after a restart of the home. It returns those that conflict with locks granted in the
// meantime.
func (t *Table) Resume(node metadata.NodeID, ino metadata.Ino, locks []metadata.Lock) (lost []metadata.Lock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.file(ino)
	defer t.tidy(ino, f)
	for _, l := range locks {
		if h := (held{node, l}); l.Type != metadata.Unlocked && !f.blocked(h) {
			t.set(f, h)
		} else {
			lost = append(lost, l)
		}
	}
	return lost
}

// Closed releases all locks and requests of a node on a file that the node has closed, or because the node is lost.
func (t *Table) Closed(node metadata.NodeID, ino metadata.Ino, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.files[ino]
	if f == nil {
		return
	}
	for _, h := range f.held {
		if h.node == node {
			t.count(h.owner(), -1)
		}
	}
	f.held = slices.DeleteFunc(f.held, func(h held) bool { return h.node == node })
	for _, w := range slices.Clone(f.queue) {
		if w.node == node {
			t.unwait(f, w)
		}
	}
	t.serve(f, now)
	t.tidy(ino, f)
}

// Stats has the size of a table.
type Stats struct {
	Files   int `json:"files"` // with locks or waiters
	Locks   int `json:"locks"`
	Waiters int `json:"waiters"`
}

// Stats returns the size of the table.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Stats{Files: len(t.files)}
	for _, f := range t.files {
		s.Locks += len(f.held)
		s.Waiters += len(f.queue)
	}
	return s
}

func (t *Table) file(ino metadata.Ino) *file {
	f := t.files[ino]
	if f == nil {
		f = &file{}
		t.files[ino] = f
	}
	return f
}

func (t *Table) tidy(ino metadata.Ino, f *file) {
	if len(f.held) == 0 && len(f.queue) == 0 {
		delete(t.files, ino)
	}
}

// blocked reports whether another owner's lock conflicts with l.
func (f *file) blocked(l held) bool {
	return slices.ContainsFunc(f.held, func(h held) bool { return conflict(h, l) })
}

// shouldQueue reports whether l must wait behind queued requests. An owner that holds a lock need not: the queued
// requests may wait for that lock.
func (t *Table) shouldQueue(f *file, l held) bool {
	return t.holds[l.owner()] == 0 && slices.ContainsFunc(f.queue, func(w *waiter) bool { return conflict(w.held, l) })
}

// grant applies l, and serves the queue.
func (t *Table) grant(ino metadata.Ino, f *file, l held, w *waiter, now time.Time) metadata.LockAnswer {
	t.unwait(f, w)
	t.set(f, l)
	t.serve(f, now)
	return metadata.LockAnswer{Granted: true, Version: t.version}
}

// set is put, and updates the counters.
func (t *Table) set(f *file, l held) {
	count := func() (n int) {
		for _, h := range f.held {
			if h.owner() == l.owner() {
				n++
			}
		}
		return n
	}
	before := count()
	f.held = put(f.held, l)
	t.count(l.owner(), count()-before)
	t.version++
}

func (t *Table) count(o owner, n int) {
	if t.holds[o] += n; t.holds[o] == 0 {
		delete(t.holds, o)
	}
}

// serve grants requests in queue order: none overtakes a conflicting one.
func (t *Table) serve(f *file, now time.Time) {
	var passed []held
	for _, w := range slices.Clone(f.queue) {
		switch {
		case now.Sub(w.asked) > staleAfter:
			t.unwait(f, w)
		case f.blocked(w.held), t.holds[w.owner()] == 0 && slices.ContainsFunc(passed, func(p held) bool { return conflict(p, w.held) }):
			passed = append(passed, w.held)
		default:
			t.unwait(f, w)
			t.set(f, w.held)
			t.wake(w.node, w.id)
		}
	}
}

// cancel removes a waiter. A lock that was already granted stays.
func (t *Table) cancel(f *file, l held, w *waiter) metadata.LockAnswer {
	if w != nil {
		t.unwait(f, w)
		t.serve(f, w.asked)
		return metadata.LockAnswer{Version: t.version}
	}
	return metadata.LockAnswer{Granted: covered(f.held, l), Version: t.version}
}

// covered reports whether l's owner holds the whole range of l.
func covered(set []held, l held) bool {
	return slices.ContainsFunc(set, func(h held) bool {
		return h.owner() == l.owner() && h.Type == l.Type && h.Start <= l.Start && l.End <= h.End
	})
}

// find returns the waiter with that number; nil if there is none.
func (t *Table) find(f *file, node metadata.NodeID, id uint64) *waiter {
	for _, w := range f.queue {
		if w.node == node && w.id == id {
			return w
		}
	}
	return nil
}

// unwait removes w, which may be nil, from the queue.
func (t *Table) unwait(f *file, w *waiter) {
	if w == nil {
		return
	}
	is := func(v *waiter) bool { return v == w }
	f.queue = slices.DeleteFunc(f.queue, is)
	o := w.owner()
	if t.waits[o] = slices.DeleteFunc(t.waits[o], is); len(t.waits[o]) == 0 {
		delete(t.waits, o)
	}
}

// deadlock reports whether an owner of a conflicting lock waits, directly or through others, for
// l's owner.
func (t *Table) deadlock(f *file, l held) bool {
	seen := make(map[owner]bool)
	var waitsFor func(f *file, l held, last owner) bool
	waitsFor = func(f *file, l held, last owner) bool {
		for _, h := range f.held {
			if !conflict(h, l) {
				continue
			}
			o := h.owner()
			if o == last {
				return true
			}
			if seen[o] {
				continue
			}
			seen[o] = true
			for _, w := range t.waits[o] {
				if waitsFor(t.files[w.ino], w.held, last) {
					return true
				}
			}
		}
		return false
	}
	for _, h := range f.held {
		if !conflict(h, l) {
			continue
		}
		for _, w := range t.waits[h.owner()] {
			if waitsFor(t.files[w.ino], w.held, l.owner()) {
				return true
			}
		}
	}
	return false
}
