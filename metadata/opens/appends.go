package opens

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// freezeTime is how long the appends of a file wait for a size that was to be
// set and was not.
const freezeTime = 10 * time.Second

// appends is where the end of a file is. What is below the first flight is
// there; what everybody sees of the file ends there.
type appends struct {
	tail    int64 // behind all places that were given
	flights map[metadata.NodeID]metadata.Flight
	last    map[metadata.NodeID]uint64 // the Seq of each node's last place
	cutting int                        // sizes that are being set, or are about to be
	growing int                        // sizes that are being published
	cuts    uint64                     // sizes that were set
	frozen  time.Time
	freezer metadata.NodeID
	changed chan struct{} // closed at the next change of what somebody may wait for

	// What clients have said after a restart of the home, until the first
	// append: the places that they know, and the appends that know none.
	placed  []metadata.Extent
	pending []pending
}

// pending is an append whose client may have been given a place by an earlier
// life of the home, but has not heard of it.
type pending struct {
	node   metadata.NodeID
	flight metadata.Flight
}

func newAppends() *appends {
	return &appends{
		flights: make(map[metadata.NodeID]metadata.Flight), last: make(map[metadata.NodeID]uint64),
		changed: make(chan struct{}),
	}
}

// idle reports whether nothing is under way; nil is idle.
func (a *appends) idle() bool {
	return a == nil || len(a.flights)+len(a.placed)+len(a.pending)+a.cutting+a.growing == 0 && a.frozen.IsZero()
}

// end is how long the file is for everybody.
func (a *appends) end() int64 {
	end := a.tail
	for _, fl := range a.flights {
		end = min(end, fl.Off)
	}
	return end
}

func (a *appends) change() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// land ends what a node has under way; a may be nil.
func (a *appends) land(id metadata.NodeID) {
	if a == nil {
		return
	}
	if _, ok := a.flights[id]; ok {
		delete(a.flights, id)
		a.change()
	}
	if a.freezer == id && !a.frozen.IsZero() {
		a.frozen = time.Time{}
		a.change()
	}
}

// complete ends the flight of a node that is before seq.
func (a *appends) complete(id metadata.NodeID, q metadata.Append) {
	fl, ok := a.flights[id]
	if !ok || fl.Seq >= q.Seq {
		return
	}
	delete(a.flights, id)
	if q.Unused && fl.End() == a.tail {
		a.tail = fl.Off
	}
	a.change()
}

// resume takes what a node says of its appends, after a restart of the home.
func (f *file) resume(id metadata.NodeID, o metadata.Opened) {
	if len(o.Placed) == 0 && o.Flight.Len == 0 {
		return
	}
	a := f.theAppends()
	a.placed = append(a.placed, o.Placed...)
	switch {
	case o.Flight.Len == 0:
	case o.Flight.Off < 0:
		a.pending = append(a.pending, pending{id, o.Flight})
	default:
		a.placed = append(a.placed, o.Flight.Extent)
		a.fly(id, o.Flight)
	}
	for _, e := range a.placed {
		a.tail = max(a.tail, e.End())
	}
}

func (a *appends) fly(id metadata.NodeID, fl metadata.Flight) {
	a.flights[id] = fl
	a.last[id] = max(a.last[id], fl.Seq)
}

// reunite finds, after a restart of the home, the places of which clients have
// not heard. They are where nobody has a place, in the file of size bytes.
func (a *appends) reunite(size int64) {
	if len(a.pending) > 0 {
		for _, p := range fitAll(gaps(a.placed, size), a.pending) {
			a.fly(p.node, p.flight)
		}
	}
	a.placed, a.pending = nil, nil
}

func (f *file) theAppends() *appends {
	if f.appends == nil {
		f.appends = newAppends()
	}
	return f.appends
}

// round is one look at an append: what has changed the file's end before it,
// and what to wait for if it cannot go on.
type round struct {
	cuts uint64
	wait <-chan struct{}
	till time.Time // or until then; zero is no such time
}

// Before begins an append. It is told the size of the file after that, by
// Place. If it has to wait, the round says for what.
func (r *Registry) Before(by metadata.Holder, q metadata.Append, now time.Time) (round, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaited > 0 {
		return round{wait: r.known}, nil
	}
	if !r.meet(by) {
		return round{}, fmt.Errorf("inode %v: an earlier run of node %d: %w", q.Ino, by.Node, syscall.ESTALE)
	}
	f := r.file(q.Ino)
	if f.removing {
		return round{}, fmt.Errorf("inode %v has no name: %w", q.Ino, syscall.ESTALE)
	}
	a := f.theAppends()
	a.complete(by.Node, q) // also if q has to wait, for who waits for that
	switch {
	case a.cutting > 0:
		return round{wait: a.changed}, nil
	case !a.frozen.IsZero() && a.freezer != by.Node && (q.Len > 0 || q.Freeze) && now.Before(a.frozen):
		return round{wait: a.changed, till: a.frozen}, nil
	}
	return round{cuts: a.cuts}, nil
}

// errAgain says that the size of a file was set meanwhile, and that the round
// has to begin again.
var errAgain = errors.New("the size was set meanwhile")

// Place gives an append of a file that has size bytes in the store its place,
// and says how long the file is for everybody.
func (r *Registry) Place(by metadata.Holder, q metadata.Append, was round, size int64, now time.Time) (p metadata.Place, end int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[q.Ino]
	if f == nil || f.appends == nil || f.appends.cutting > 0 || f.appends.cuts != was.cuts {
		return p, 0, errAgain
	}
	a := f.appends
	a.reunite(size)
	a.complete(by.Node, q)
	a.tail = max(a.tail, size, q.End)
	a.freeze(by.Node, q, now)
	if q.Len > 0 {
		p.Off, err = a.give(by.Node, q)
	}
	p.Tail = a.tail
	p.Alone = f.alone(by.Node)
	return p, a.end(), err
}

// alone reports whether no other node has f open.
func (f *file) alone(id metadata.NodeID) bool {
	return !slices.ContainsFunc(f.holders, func(h holding) bool { return h.node != id })
}

// freeze does what q says of the others' appends.
func (a *appends) freeze(id metadata.NodeID, q metadata.Append, now time.Time) {
	switch {
	case q.Freeze:
		a.frozen, a.freezer = now.Add(freezeTime), id
	case q.Thaw && a.freezer == id && !a.frozen.IsZero():
		a.frozen = time.Time{}
		a.change()
	}
}

// give is the place of q, which may have it already. One that comes late, when
// its client has asked for another, gets none.
func (a *appends) give(id metadata.NodeID, q metadata.Append) (int64, error) {
	if fl, ok := a.flights[id]; ok && fl.Seq == q.Seq {
		return fl.Off, nil
	}
	if q.Seq <= a.last[id] {
		return 0, fmt.Errorf("append %d to %v, after %d: %w", q.Seq, q.Ino, a.last[id], syscall.ESTALE)
	}
	off := a.tail
	a.tail += q.Len
	a.fly(id, metadata.Flight{Seq: q.Seq, Extent: metadata.Extent{Off: off, Len: q.Len}})
	return off, nil
}

// BeginGrow says that the store is about to know how long the file is for
// everybody. ok is false if a size was set since the round, or is being set.
// The size cannot be set before EndGrow.
func (r *Registry) BeginGrow(ino metadata.Ino, was round) (end int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[ino]
	if f == nil || f.appends == nil || f.appends.cutting > 0 || f.appends.cuts != was.cuts {
		return 0, false
	}
	f.appends.growing++
	return f.appends.end(), true
}

// EndGrow ends what BeginGrow began.
func (r *Registry) EndGrow(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	if f.appends.growing--; f.appends.growing == 0 && f.appends.cutting > 0 {
		f.appends.change()
	}
	r.settle(ino, f)
}

// Settle forgets a file of which there is nothing to know.
func (r *Registry) Settle(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.files[ino]; f != nil {
		r.settle(ino, f)
	}
}

// Until is what q still has to wait for after its Place; nil is nothing.
func (r *Registry) Until(q metadata.Append) (wait <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[q.Ino]
	if f == nil || f.appends == nil {
		return nil
	}
	a := f.appends
	if a.end() < min(q.Wait, a.tail) || q.Freeze && len(a.flights) > 0 {
		return a.changed
	}
	return nil
}

// BeginCut says that the size of a file is about to be set: appends wait.
func (r *Registry) BeginCut(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.file(ino).theAppends().cutting++
}

// Growing is what a cut has to wait for; nil is nothing.
func (r *Registry) Growing(ino metadata.Ino) (wait <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.file(ino).theAppends(); a.growing > 0 {
		return a.changed
	}
	return nil
}

// EndCut says that it was set to size, or, with a negative one, was not.
func (r *Registry) EndCut(ino metadata.Ino, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	a := f.theAppends()
	a.cutting--
	if size >= 0 {
		a.cuts++
		a.tail = size
		clear(a.flights)
		a.placed, a.pending = nil, nil
		a.frozen = time.Time{}
	}
	a.change()
	r.settle(ino, f)
}
