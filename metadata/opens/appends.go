package opens

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

// report takes what a node knows of its appends after a restart of the home.
func (f *file) report(id metadata.NodeID, o metadata.Opened) {
	if o.Flight.Seq > 0 || f.appends != nil {
		f.home().Report(id, o.Flight, o.Placed)
	}
}

func (f *file) home() *appends.Home {
	if f.appends == nil {
		f.appends = appends.NewHome()
	}
	return f.appends
}

// round is one attempt at an append: the truncations before it, and what to wait
// for if it cannot go on.
type round struct {
	truncations uint64
	wait        <-chan struct{}
	till        time.Time // no longer than that; zero is for as long as it takes
}

// Before begins an append. Place goes on, with the size that the store has after
// Before. If the append has to wait, the round says for what.
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
	h := f.home()
	h.Complete(by.Node, q) // even if q has to wait: others may wait for that
	wait, till := h.Blocked(by.Node, q, now)
	n, _ := h.Truncations()
	return round{truncations: n, wait: wait, till: till}, nil
}

// errAgain says that the file was truncated meanwhile, so that the round has to
// begin again.
var errAgain = errors.New("truncated meanwhile")

// current is f's appends if no truncation came between.
func (r *Registry) current(ino metadata.Ino, was round) (*file, bool) {
	f := r.files[ino]
	if f == nil || f.appends == nil {
		return nil, false
	}
	n, ok := f.appends.Truncations()
	return f, ok && n == was.truncations
}

// Place gives an append of a file that has size bytes in the store its place,
// and returns the size that everybody may see.
func (r *Registry) Place(by metadata.Holder, q metadata.Append, was round, size int64, now time.Time) (p metadata.Place, end int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.meet(by) { // since Before
		return p, 0, fmt.Errorf("inode %v: an earlier run of node %d: %w", q.Ino, by.Node, syscall.ESTALE)
	}
	f, ok := r.current(q.Ino, was)
	if !ok {
		return p, 0, errAgain
	}
	p.Off, err = f.appends.Place(by.Node, q, size, now)
	p.Tail = f.appends.Tail()
	p.Alone = f.alone(by.Node)
	return p, f.appends.End(), err
}

// alone reports whether no other node has f open.
func (f *file) alone(id metadata.NodeID) bool {
	return !slices.ContainsFunc(f.holders, func(h holding) bool { return h.node != id })
}

// BeginPublish says that the store is about to learn the size that everybody may
// see. ok is false if the file was truncated since the round, or is being
// truncated. The file cannot be truncated before EndPublish.
func (r *Registry) BeginPublish(ino metadata.Ino, was round) (end int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.current(ino, was)
	if !ok {
		return 0, false
	}
	f.appends.BeginPublish()
	return f.appends.End(), true
}

// EndPublish ends what BeginPublish began.
func (r *Registry) EndPublish(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	f.appends.EndPublish()
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

// Incomplete is what q still waits for after its Place; nil is nothing.
func (r *Registry) Incomplete(q metadata.Append) (wait <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[q.Ino]
	if f == nil || f.appends == nil {
		return nil
	}
	return f.appends.Incomplete(q)
}

// BeginTruncate has appends wait for a truncation.
func (r *Registry) BeginTruncate(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.file(ino).home().BeginTruncate()
}

// Publishing is what a truncation has to wait for; nil is nothing.
func (r *Registry) Publishing(ino metadata.Ino) (wait <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file(ino).home().Publishing()
}

// EndTruncate ends a truncation to size, or, with a negative one, one that has
// failed.
func (r *Registry) EndTruncate(ino metadata.Ino, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	f.home().EndTruncate(size)
	r.settle(ino, f)
}
