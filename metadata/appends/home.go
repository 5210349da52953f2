package appends

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// FreezeTime limits how long an announced truncate that does not arrive keeps the size of a file from growing.
const FreezeTime = 10 * time.Second

// AloneTerm is how long a node that alone has the file open may buffer appends without asking again. It stops earlier
// if the home recalls the file because another node opens it.
const AloneTerm = time.Second

// Home orders the appends of one file at its home. The caller's lock guards it.
type Home struct {
	tail        int64 // end of all places given to clients
	outstanding map[metadata.NodeID]metadata.Reservation
	lastSeq     map[metadata.NodeID]uint64 // requests of the node up to this one get no place
	truncating  int                        // truncations in progress or about to begin
	publishing  int                        // sizes being written to the store
	truncations uint64                     // truncations so far
	freeze      uint64                     // number of the announced truncate; 0 is none
	freezer     metadata.NodeID
	frozenUntil time.Time
	changed     chan struct{} // closed at the next change that a request may wait for

	// reports has the reports of the nodes, from the restart of the home to the first place that it gives.
	reports map[metadata.NodeID]report
}

// report is a node's state of its appends.
type report struct {
	written     []metadata.Extent
	outstanding metadata.Reservation
}

// NewHome returns the home of a file without appends.
func NewHome() *Home {
	return &Home{
		outstanding: make(map[metadata.NodeID]metadata.Reservation), lastSeq: make(map[metadata.NodeID]uint64),
		changed: make(chan struct{}),
	}
}

// Idle reports whether no work is in progress; a nil Home is idle.
func (h *Home) Idle() bool {
	return h == nil || len(h.outstanding)+len(h.reports)+h.truncating+h.publishing == 0 && !h.Frozen()
}

// End returns the size that all nodes may see.
func (h *Home) End() int64 {
	end := h.tail
	for _, fl := range h.outstanding {
		end = min(end, fl.Off)
	}
	return end
}

// Tail returns the end of all places given to clients.
func (h *Home) Tail() int64 { return h.tail }

func (h *Home) change() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Closed ends the appends of a node that has closed the file.
func (h *Home) Closed(id metadata.NodeID) {
	delete(h.reports, id)
	if _, ok := h.outstanding[id]; ok {
		delete(h.outstanding, id)
		h.change()
	}
}

// Abandon ends a node's appends in progress. h may be nil.
func (h *Home) Abandon(id metadata.NodeID) {
	if h == nil {
		return
	}
	h.Closed(id)
	if h.freezer == id && h.Frozen() {
		h.thaw()
	}
}

// Restarted is Abandon for a node whose client has a new run, which numbers its appends anew. h may be nil.
func (h *Home) Restarted(id metadata.NodeID) {
	h.Abandon(id)
	if h != nil {
		delete(h.lastSeq, id)
	}
}

// Report records a node's state of its appends after a restart of the home. A later report of the node replaces an
// earlier one.
func (h *Home) Report(id metadata.NodeID, outstanding metadata.Reservation, written []metadata.Extent) {
	if h.reports == nil {
		h.reports = make(map[metadata.NodeID]report)
	}
	h.reports[id] = report{written, outstanding}
}

// recover rebuilds the state from the reports. size is the stored size of the file.
func (h *Home) recover(size int64) {
	if len(h.reports) == 0 {
		return
	}
	var placed []metadata.Extent
	var lost []pending
	for _, id := range slices.Sorted(maps.Keys(h.reports)) {
		r := h.reports[id]
		placed = append(placed, r.written...)
		switch fl := r.outstanding; {
		case fl.Len == 0:
			h.lastSeq[id] = max(h.lastSeq[id], fl.Seq)
		case fl.Off < 0:
			h.lastSeq[id] = max(h.lastSeq[id], fl.Seq-1)
			lost = append(lost, pending{id, fl})
		default:
			placed = append(placed, fl.Extent)
			h.give(id, fl)
		}
	}
	h.reports = nil
	for _, e := range placed {
		h.tail = max(h.tail, e.End())
	}
	for _, p := range fillGaps(gaps(placed, size), lost) {
		h.give(p.node, p.flight)
	}
}

func (h *Home) give(id metadata.NodeID, fl metadata.Reservation) {
	h.outstanding[id] = fl
	h.lastSeq[id] = max(h.lastSeq[id], fl.Seq)
}

// Complete ends the node's reservation that is older than q. Late copies of older requests get no place any more.
func (h *Home) Complete(id metadata.NodeID, q metadata.Append) {
	if q.Seq > 0 {
		h.lastSeq[id] = max(h.lastSeq[id], q.Seq-1)
	}
	fl, ok := h.outstanding[id]
	if !ok || fl.Seq >= q.Seq {
		return
	}
	delete(h.outstanding, id)
	if 0 < q.Unused && q.Unused <= fl.Seq && fl.End() == h.tail {
		h.tail = fl.Off
	}
	h.change()
}

// Blocked returns the event that q must wait for before it can get a place, at most until till unless till is zero; nil
// if there is none. While an announced truncation still waits for appends, sizes grow: the truncation waits for the
// last append.
func (h *Home) Blocked(id metadata.NodeID, q metadata.Append, now time.Time) (wait <-chan struct{}, till time.Time) {
	switch {
	case h.truncating > 0:
		return h.changed, till
	case !h.Frozen() || q.Freeze == h.freeze || !now.Before(h.frozenUntil):
	case q.Seq > 0 && h.outstanding[id].Seq == q.Seq: // it has its place, and the freeze waits for its end
	case q.Len > 0 || q.Announces(), q.End > h.tail && len(h.outstanding) == 0:
		return h.changed, h.frozenUntil
	}
	return nil, till
}

// GrowBlocked is Blocked for a write that extends the file.
func (h *Home) GrowBlocked(now time.Time) (wait <-chan struct{}, till time.Time) {
	return h.Blocked(0, metadata.Append{End: math.MaxInt64}, now)
}

// Truncations returns the number of truncations so far. ok is false while one is in progress.
func (h *Home) Truncations() (n uint64, ok bool) { return h.truncations, h.truncating == 0 }

// Place gives an append its place in a file whose stored size is size. ESTALE means that the request is a late copy:
// its client has requested another place since.
func (h *Home) Place(id metadata.NodeID, q metadata.Append, size int64, now time.Time) (off int64, err error) {
	h.recover(size)
	h.Complete(id, q)
	h.tail = max(h.tail, size, q.End)
	h.announce(id, q, now)
	if q.Len == 0 {
		return 0, nil
	}
	if fl, ok := h.outstanding[id]; ok && fl.Seq == q.Seq {
		return fl.Off, nil
	}
	if last := h.lastSeq[id]; q.Seq <= last {
		return 0, fmt.Errorf("append %d to %v, after %d: %w", q.Seq, q.Ino, last, syscall.ESTALE)
	}
	off = h.tail
	h.tail += q.Len
	h.give(id, metadata.Reservation{Seq: q.Seq, Extent: metadata.Extent{Off: off, Len: q.Len}})
	return off, nil
}

// announce starts or ends a freeze of the size, as q requests. Repeating it does not extend a freeze, because then one
// hanging append would block all others.
func (h *Home) announce(id metadata.NodeID, q metadata.Append, now time.Time) {
	switch {
	case q.Announces() && q.Freeze != h.freeze:
		h.freeze, h.freezer, h.frozenUntil = q.Freeze, id, now.Add(FreezeTime)
	case q.Thaw && q.Freeze == h.freeze:
		h.thaw()
	}
}

func (h *Home) thaw() {
	h.freeze = 0
	h.change()
}

// Frozen reports whether a truncation was announced and its size is not set yet.
func (h *Home) Frozen() bool { return h.freeze != 0 }

// EndFreeze ends a freeze whose time has passed.
func (h *Home) EndFreeze(now time.Time) {
	if h.Frozen() && !now.Before(h.frozenUntil) {
		h.thaw()
	}
}

// Incomplete returns the event that q still waits for after it was placed; nil if there is none.
func (h *Home) Incomplete(q metadata.Append) <-chan struct{} {
	if h.End() < min(q.Wait, h.tail) || q.Announces() && len(h.outstanding) > 0 {
		return h.changed
	}
	return nil
}

// BeginPublish records that a size is being written to the store: until EndPublish no truncation begins or is
// announced.
func (h *Home) BeginPublish() { h.publishing++ }

// EndPublish ends one BeginPublish.
func (h *Home) EndPublish() {
	if h.publishing--; h.publishing == 0 {
		h.change()
	}
}

// BeginTruncate makes appends and sizes wait for a truncation. It returns false if freeze, under which data was cut
// off, has ended; freeze 0 means that no data was cut off.
func (h *Home) BeginTruncate(freeze uint64, now time.Time) bool {
	h.EndFreeze(now)
	if freeze != 0 && freeze != h.freeze {
		return false
	}
	h.truncating++
	return true
}

// Publishing returns the event that a truncation must wait for; nil if there is none.
func (h *Home) Publishing() <-chan struct{} {
	if h.publishing > 0 {
		return h.changed
	}
	return nil
}

// EndTruncate ends a truncation that has set the size, or has failed if size is negative.
func (h *Home) EndTruncate(size int64) {
	h.truncating--
	if size >= 0 {
		h.truncations++
		h.tail = size
		clear(h.outstanding)
		h.reports = nil
		h.freeze = 0
	}
	h.change()
}
