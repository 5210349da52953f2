package locks

import (
	"cmp"
	"slices"
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
	metalocks "github.com/bivouacfs/bivouac/metadata/locks"
)

// table holds the locks that homes have granted to this node, the waiting requests, and the retries.
type table struct {
	mu       sync.Mutex
	waiter   uint64                       // under mu: the last number given to a waiter
	waiting  map[uint64]chan struct{}     // under mu: closed by wake
	files    map[metadata.Ino]*mirror     // under mu
	holders  map[fileKind]map[uint64]bool // under mu: owners that may have locks
	requests map[owner]int                // under mu: requests in flight
	retrying map[owner]*retries           // under mu
	closed   bool                         // under mu: no more retries begin
}

type fileKind struct {
	ino  metadata.Ino
	kind metadata.LockKind
}

type owner struct {
	fileKind
	id uint64
}

func ownerOf(q metadata.LockReq) owner { return owner{fileKind{q.Ino, q.Kind}, q.Owner} }

// retries counts the retries of one owner.
type retries struct {
	n    int
	done chan struct{} // closed when the last one has ended
}

// mirror holds this node's locks on a file. Answers of the home can overtake each other: they are applied in the order
// of their versions when no request is in flight.
type mirror struct {
	set      metalocks.Set
	newest   uint64   // version of the last answer in set
	answers  []answer // not applied yet
	inFlight int
}

type answer struct {
	version uint64
	lock    metadata.Lock
}

// init numbers waiters from first on, so that their numbers differ from those of an earlier run.
func (t *table) init(first uint64) {
	t.waiter = first
	t.waiting = make(map[uint64]chan struct{})
	t.files = make(map[metadata.Ino]*mirror)
	t.holders = make(map[fileKind]map[uint64]bool)
	t.requests = make(map[owner]int)
	t.retrying = make(map[owner]*retries)
}

func (t *table) wake(waiters []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range waiters {
		if ch, ok := t.waiting[w]; ok {
			select {
			case <-ch:
			default:
				close(ch)
			}
		}
	}
}

// enqueue assigns q a waiter number.
func (t *table) enqueue(q *metadata.LockReq) <-chan struct{} {
	t.mu.Lock()
	t.waiter++
	q.Waiter = t.waiter
	t.mu.Unlock()
	return t.await(q.Waiter)
}

// await returns a channel that the next wake of the waiter closes.
func (t *table) await(waiter uint64) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[waiter] = make(chan struct{})
	return t.waiting[waiter]
}

func (t *table) dequeue(waiter uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.waiting, waiter)
}

// begin records that a request is in flight.
func (t *table) begin(q metadata.LockReq) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.files[q.Ino]
	if m == nil {
		m = &mirror{}
		t.files[q.Ino] = m
	}
	m.inFlight++
	t.requests[ownerOf(q)]++
	t.addHolder(q)
}

// addHolder records that the owner of q may have a lock; t.mu is held.
func (t *table) addHolder(q metadata.LockReq) {
	if q.Type == metadata.Unlocked {
		return
	}
	k := fileKind{q.Ino, q.Kind}
	if t.holders[k] == nil {
		t.holders[k] = make(map[uint64]bool)
	}
	t.holders[k][q.Owner] = true
}

// granted mirrors an answer of the home.
func (t *table) granted(q metadata.LockReq, version uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.files[q.Ino]; m != nil {
		m.answers = append(m.answers, answer{version, q.Lock})
	}
	t.addHolder(q) // an UnlockAll may have removed the owner meanwhile
}

// end ends a request that begin began.
func (t *table) end(q metadata.LockReq) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := ownerOf(q); t.requests[k] > 1 {
		t.requests[k]--
	} else {
		delete(t.requests, k)
	}
	m := t.files[q.Ino]
	if m == nil {
		return
	}
	if m.inFlight--; m.inFlight > 0 {
		return
	}
	m.set, m.newest = m.now()
	if m.answers = nil; len(m.set) == 0 {
		delete(t.files, q.Ino)
	}
}

// now returns the locks after all answers so far, in the order of their versions, and the last version. While a request
// is in flight, an earlier answer may still arrive.
func (m *mirror) now() (set metalocks.Set, newest uint64) {
	slices.SortStableFunc(m.answers, func(a, b answer) int { return cmp.Compare(a.version, b.version) })
	set, newest = m.set, m.newest
	for _, a := range m.answers {
		set, newest = set.With(a.lock), a.version
	}
	return set, newest
}

func (t *table) held(ino metadata.Ino) []metadata.Lock {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.files[ino]
	if m == nil {
		return nil
	}
	set, _ := m.now()
	return slices.Clone(set)
}

// mayHold reports whether the owner may have locks on the file.
func (t *table) mayHold(ino metadata.Ino, kind metadata.LockKind, owner uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holders[fileKind{ino, kind}][owner]
}

// holdsNothingElse reports whether the owner of q has no known lock on any of q's bytes, and no other request in
// flight.
func (t *table) holdsNothingElse(q metadata.LockReq) bool {
	t.mu.Lock()
	others := t.requests[ownerOf(q)] > 1
	t.mu.Unlock()
	return !others && !t.holds(q, metadata.ReadLock, metadata.WriteLock)
}

// holds reports whether the owner of q has a known lock of one of the types on any of q's bytes.
func (t *table) holds(q metadata.LockReq, types ...metadata.LockType) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.files[q.Ino]
	if m == nil {
		return false
	}
	set, _ := m.now()
	return slices.ContainsFunc(set, func(l metadata.Lock) bool {
		return l.Kind == q.Kind && l.Owner == q.Owner && slices.Contains(types, l.Type) && l.Start <= q.End && q.Start <= l.End
	})
}

// unlocked records that a lock was released, or, with err, that its home will never learn of the release: a home that
// returns must not get the lock back.
func (t *table) unlocked(q metadata.LockReq, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.files[q.Ino]; m != nil && err != nil {
		_, newest := m.now()
		m.answers = append(m.answers, answer{newest, q.Lock})
	}
	if q.Start != 0 || q.End != metadata.MaxLockEnd {
		return
	}
	k := fileKind{q.Ino, q.Kind}
	if delete(t.holders[k], q.Owner); len(t.holders[k]) == 0 {
		delete(t.holders, k)
	}
}

func (t *table) fileClosed(ino metadata.Ino) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.files[ino]; m != nil && m.inFlight == 0 {
		delete(t.files, ino)
	}
	for _, kind := range []metadata.LockKind{metadata.PosixLock, metadata.FlockLock} {
		delete(t.holders, fileKind{ino, kind})
	}
}

// beginRetry records a retry for q's owner and calls start; it returns false if the table is closed.
func (t *table) beginRetry(q metadata.LockReq, start func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	r := t.retrying[ownerOf(q)]
	if r == nil {
		r = &retries{done: make(chan struct{})}
		t.retrying[ownerOf(q)] = r
	}
	r.n++
	start()
	return true
}

// endRetry ends a retry that beginRetry began.
func (t *table) endRetry(q metadata.LockReq) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.retrying[ownerOf(q)]
	if r.n--; r.n == 0 {
		delete(t.retrying, ownerOf(q))
		close(r.done)
	}
}

// retries returns a channel that is closed when the retries of q's owner have ended, or nil if there are none.
func (t *table) retries(q metadata.LockReq) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.retrying[ownerOf(q)]; r != nil {
		return r.done
	}
	return nil
}

// close prevents further retries.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}
