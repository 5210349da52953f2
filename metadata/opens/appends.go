package opens

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

// report adopts a node's report of its appends after a restart of the home.
func (f *file) report(id metadata.NodeID, o metadata.Opened) {
	if o.Outstanding.Seq > 0 || f.appends != nil {
		f.home().Report(id, o.Outstanding, o.Written)
	}
}

func (f *file) home() *appends.Home {
	if f.appends == nil {
		f.appends = appends.NewHome()
	}
	return f.appends
}

// round is one try of an append: the number of truncations before it, and the event to wait for if it is blocked.
type round struct {
	truncations uint64
	losses      int // how often the node was given up before this try
	wait        <-chan struct{}
	till        time.Time // wait at most until then; zero means no limit
}

// Before begins an append. The caller then reads the size from the store and calls Place.
// If the append is blocked, it first waits for round.wait.
func (r *Registry) Before(by metadata.Holder, q metadata.Append, now time.Time) (round, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	losses := r.node(by.Node).losses
	if r.awaited > 0 {
		return round{losses: losses, wait: r.allAnswered}, nil
	}
	if err := r.admit(by, q); err != nil {
		return round{}, err
	}
	f := r.file(q.Ino)
	if f.dead {
		return round{}, fmt.Errorf("inode %v is unlinked and being removed: %w", q.Ino, syscall.ESTALE)
	}
	h := f.home()
	h.Complete(by.Node, q) // even if q is blocked: other nodes may wait for this
	wait, till := h.Blocked(by.Node, q, now)
	n, _ := h.Truncations()
	return round{truncations: n, losses: losses, wait: wait, till: till}, nil
}

// admit refuses a request of a client that has died. It also refuses the announcement of a truncate that was thawed or
// has exceeded its time: nothing would end that truncate again.
func (r *Registry) admit(by metadata.Holder, q metadata.Append) error {
	switch {
	case !r.noteRun(by):
		return fmt.Errorf("inode %v: an earlier run of node %d: %w", q.Ino, by.Node, syscall.ESTALE)
	case q.Announces() && r.over.Contains(q.Freeze):
		return fmt.Errorf("inode %v: the truncate has ended: %w", q.Ino, syscall.ECANCELED)
	}
	return nil
}

// abandon ends the appends of a client that has died. If that makes appends of other clients visible, it has the new
// size published.
func (r *Registry) abandon(ino metadata.Ino, f *file, id metadata.NodeID, end func(*appends.Home, metadata.NodeID)) {
	if f.appends == nil {
		return
	}
	was := f.appends.End()
	if end(f.appends, id); f.appends.End() > was {
		r.outdate(ino, f)
		f.grown = true
	}
	r.thawed(ino, f)
}

// errAgain means that the file was truncated, or a truncate was announced, in the meantime: the append starts over.
var errAgain = errors.New("truncated meanwhile")

// current returns the file if it was not truncated since the round began.
func (r *Registry) current(ino metadata.Ino, was round) (*file, bool) {
	f := r.files[ino]
	if f == nil || f.appends == nil {
		return nil, false
	}
	n, ok := f.appends.Truncations()
	return f, ok && n == was.truncations
}

// Place reserves the place of an append. size is the file's size in the store; end is the size that all nodes may see.
func (r *Registry) Place(by metadata.Holder, q metadata.Append, was round, size int64, now time.Time) (p metadata.Place, end int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f, ok := r.current(q.Ino, was); ok {
		f.appends.EndFreeze(now)
		r.thawed(q.Ino, f)
	}
	if err := r.admit(by, q); err != nil { // since Before
		return p, 0, err
	}
	f, ok := r.current(q.Ino, was)
	if !ok || q.Announces() && was.losses != r.node(by.Node).losses {
		return p, 0, errAgain
	}
	if wait, _ := f.appends.Blocked(by.Node, q, now); wait != nil { // since Before
		return p, 0, errAgain
	}
	p.Off, err = f.appends.Place(by.Node, q, size, now)
	if q.Announces() {
		r.frozen[q.Ino] = q.Freeze
	}
	if r.thawed(q.Ino, f); q.Thaw { // also a freeze not announced yet, or from before the home's restart
		r.over.Add(q.Freeze, struct{}{})
		r.renew(q.Ino, f)
	}
	p.Tail = f.appends.Tail()
	p.Alone = r.tellAlone(f, by.Node)
	return p, f.appends.End(), err
}

// tellAlone reports whether node id alone has f open, and records that it may buffer appends.
func (r *Registry) tellAlone(f *file, id metadata.NodeID) bool {
	if _, has := f.holder(id); !has || !f.alone(id) {
		return false
	}
	r.mayBuffer(f, id)
	return true
}

// mayBuffer records that node id, if it has f open, may buffer appends: this home, or an earlier run, may have told it
// that it is alone.
func (r *Registry) mayBuffer(f *file, id metadata.NodeID) {
	if i, has := f.holder(id); has {
		r.seq++
		f.holders[i].alone = r.seq
	}
}

// toldAlone returns a node other than id that may buffer appends because it alone had ino open, and the seq of that
// permission; seq is 0 if there is none.
func (r *Registry) toldAlone(ino metadata.Ino, id metadata.NodeID) (told metadata.NodeID, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.files[ino]; f != nil {
		for _, h := range f.holders {
			if h.node != id && h.alone > 0 {
				return h.node, h.alone
			}
		}
	}
	return 0, 0
}

// notAlone records that a node knows that its permission to buffer appends has ended.
func (r *Registry) notAlone(ino metadata.Ino, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.files[ino]; f != nil {
		for i := range f.holders {
			if f.holders[i].alone == seq {
				f.holders[i].alone = 0
			}
		}
	}
}

// holder returns the index at which the node is, or would be, among the holders.
func (f *file) holder(id metadata.NodeID) (i int, has bool) {
	return slices.BinarySearchFunc(f.holders, id, func(h holder, id metadata.NodeID) int { return cmp.Compare(h.node, id) })
}

// alone reports whether no node but id has f open.
func (f *file) alone(id metadata.NodeID) bool {
	return !slices.ContainsFunc(f.holders, func(h holder) bool { return h.node != id })
}

// BeginPublish returns the size that all nodes may see, for the store. It blocks truncations until EndPublish. ok is
// false if a truncation is in progress or has happened since the round began.
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

// BeginGrow begins to publish a size that does not come from an append; EndPublish ends that. If it is blocked, the
// caller first waits for round.wait.
func (r *Registry) BeginGrow(ino metadata.Ino, now time.Time) round {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	h := f.home()
	h.EndFreeze(now)
	r.thawed(ino, f)
	wait, till := h.GrowBlocked(now)
	if wait == nil {
		h.BeginPublish()
	}
	return round{wait: wait, till: till}
}

// EndPublish unblocks truncations after BeginPublish or BeginGrow.
func (r *Registry) EndPublish(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	f.appends.EndPublish()
	r.settle(ino, f)
}

// Settle forgets a file without state, and queues a removable file for removal.
func (r *Registry) Settle(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.files[ino]; f != nil {
		r.settle(ino, f)
	}
}

// Incomplete returns the event that q still waits for after its Place; nil if there is none.
func (r *Registry) Incomplete(q metadata.Append) (wait <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[q.Ino]
	if f == nil || f.appends == nil {
		return nil
	}
	return f.appends.Incomplete(q)
}

// BeginTruncate blocks appends and publications during a truncation. It returns ECANCELED if freeze, under which the
// data was cut off, has ended.
func (r *Registry) BeginTruncate(ino metadata.Ino, freeze uint64, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	ok := f.home().BeginTruncate(freeze, now)
	r.thawed(ino, f)
	if !ok {
		r.settle(ino, f)
		return fmt.Errorf("inode %v: a larger size may have been published since its end was cut off: %w", ino, syscall.ECANCELED)
	}
	return nil
}

// Publishing returns the event that a truncation, or its announcement, must wait for; nil if there is none.
func (r *Registry) Publishing(ino metadata.Ino) (wait <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file(ino).home().Publishing()
}

// EndTruncate ends a truncation to size; a negative size means that it failed. A file with copies (copied) keeps empty
// objects beyond the size, so it becomes unsure.
func (r *Registry) EndTruncate(ino metadata.Ino, size int64, copied bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	f.home().EndTruncate(size)
	if size >= 0 {
		delete(r.frozen, ino)
	}
	if copied {
		r.unsure[ino] = struct{}{}
	}
	r.settle(ino, f)
}
