package opens

import (
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

// Registry is who has which file of one home open, and which files without a
// name can be removed. It does no I/O and knows no time.
type Registry struct {
	wake  func() // called when Take may have something to hand out; must not wait
	locks Locker

	mu      sync.Mutex
	files   map[metadata.Ino]*file
	nodes   map[metadata.NodeID]*node
	awaited int                 // nodes whose answer to a Recall is missing
	known   chan struct{}       // closed while awaited is 0
	queue   []waiting           // files that may be removed, by when that began
	making  map[uint64]struct{} // creates under way, by when they began
	moment  uint64              // counts what has an order
}

// file is an inode that is open, has no name, or is not sure to lie only where
// its size says.
type file struct {
	holders  []holding // few
	orphan   bool      // it has no name
	removing bool      // nobody can open it any more
	taken    bool      // somebody is removing it now
	unsure   bool
	appends  *appends.Home // nil until somebody appends
}

type holding struct {
	node   metadata.NodeID
	ticket metadata.Ticket
}

// node is what is known of a client.
type node struct {
	run     metadata.Run
	awaited bool // it has not said yet what it has open
	// recovering says that its appends began before this home did, so that its
	// report has to tell of them.
	recovering bool
}

type waiting struct {
	ino   metadata.Ino
	since uint64
}

// Loose is a file that nobody can reach any more. It is the caller's to remove.
type Loose struct {
	Ino metadata.Ino
	// Unsure says that its size does not tell which nodes have bytes of it.
	Unsure bool
}

// Locker is the locks of the files, which are part of what a node has open. Its
// methods must not wait, nor call the registry.
type Locker interface {
	// NodeClosed ends the locks that a node has on a file.
	NodeClosed(node metadata.NodeID, ino metadata.Ino)
	// Resume gives a node back what it had in an earlier life of the home,
	// but what others have meanwhile.
	Resume(node metadata.NodeID, ino metadata.Ino, locks []metadata.Lock) (lost []metadata.Lock)
}

// NewRegistry is a registry of nothing. It calls wake whenever Take may have
// something to hand out; wake must not wait, nor call the registry. locks may
// be nil.
func NewRegistry(wake func(), locks Locker) *Registry {
	return &Registry{
		wake:   wake,
		locks:  locks,
		known:  closedChan(),
		files:  make(map[metadata.Ino]*file),
		nodes:  make(map[metadata.NodeID]*node),
		making: make(map[uint64]struct{}),
	}
}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Open notes that by has ino open. ESTALE if it is being removed, or if a later
// run of by's node is known.
func (r *Registry) Open(by metadata.Holder, ino metadata.Ino, t metadata.Ticket) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.meet(by) {
		return fmt.Errorf("inode %v: an earlier run of node %d: %w", ino, by.Node, syscall.ESTALE)
	}
	f := r.file(ino)
	if f.removing {
		return fmt.Errorf("inode %v has no name: %w", ino, syscall.ESTALE)
	}
	f.hold(by.Node, t)
	return nil
}

// Held reports whether some node has ino open, or may have: one that has not
// said yet what it has open may have everything.
func (r *Registry) Held(ino metadata.Ino) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[ino]
	return r.awaited > 0 || f != nil && len(f.holders) > 0
}

// Close notes that by has closed a file.
func (r *Registry) Close(by metadata.Holder, o metadata.Opened) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.files[o.Ino]; f != nil && r.meet(by) {
		f.unsure = f.unsure || o.Unsure
		r.drop(o.Ino, f, by.Node, o.Ticket)
		r.settle(o.Ino, f)
	}
}

// Orphaned notes that ino has no name any more. An orphan of an earlier life
// of the home is unsure.
func (r *Registry) Orphaned(ino metadata.Ino, unsure bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	f.orphan = true
	f.unsure = f.unsure || unsure
	r.settle(ino, f)
}

// Begin says that a create is under way: what it makes can lose its name before
// it is known who has it open. End ends that.
func (r *Registry) Begin() (moment uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moment++
	r.making[r.moment] = struct{}{}
	return r.moment
}

// End is the end of a create that Begin began.
func (r *Registry) End(moment uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.making, moment)
	r.rouse()
}

// rouse calls wake if there is anything in the queue.
func (r *Registry) rouse() {
	if len(r.queue) > 0 {
		r.wake()
	}
}

// Meet notes the run of a node's client; what earlier runs had is closed.
func (r *Registry) Meet(by metadata.Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meet(by)
}

// Await says that a node may have files open that the registry does not know:
// until it has answered nothing is removed.
func (r *Registry) Await(id metadata.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.node(id); !n.awaited {
		n.awaited = true
		if r.awaited++; r.awaited == 1 {
			r.known = make(chan struct{})
		}
	}
}

// Recover is Await after a restart of the home: what the node answers tells of
// its appends too. A home that has known the node all along does not listen to
// that, because its own memory is newer.
func (r *Registry) Recover(id metadata.NodeID) {
	r.Await(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node(id).recovering = true
}

// Add takes a part of a node's answer.
func (r *Registry) Add(by metadata.Holder, files []metadata.Opened) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.meet(by) {
		return
	}
	for _, o := range files {
		f := r.file(o.Ino)
		f.unsure = f.unsure || o.Unsure
		f.hold(by.Node, o.Ticket)
		if r.node(by.Node).recovering {
			f.report(by.Node, o)
		}
		if r.locks != nil && len(o.Locks) > 0 {
			r.locks.Resume(by.Node, o.Ino, o.Locks)
		}
	}
}

// Answered says that a node's answer is complete.
func (r *Registry) Answered(id metadata.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered(r.node(id))
}

// Lost closes all that a node has open, and does not wait for it any more.
func (r *Registry) Lost(id metadata.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered(r.node(id))
	r.closeAll(id, (*appends.Home).Abandon)
}

// Confirm closes, of the files that a node was asked for, those that it has
// not named. The answer has all tickets below floor.
func (r *Registry) Confirm(by metadata.Holder, floor metadata.Ticket, asked []metadata.Ino, has []metadata.Opened) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.meet(by) {
		return
	}
	for _, ino := range asked {
		f := r.files[ino]
		if f == nil || floor == 0 || slices.ContainsFunc(has, func(o metadata.Opened) bool { return o.Ino == ino }) {
			continue
		}
		f.unsure = true
		r.drop(ino, f, by.Node, floor-1)
		r.settle(ino, f)
	}
}

// Doubtful is the files without a name that are open, by node.
func (r *Registry) Doubtful() map[metadata.NodeID][]metadata.Ino {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := make(map[metadata.NodeID][]metadata.Ino)
	for ino, f := range r.files {
		for _, h := range f.holders {
			if f.orphan {
				m[h.node] = append(m[h.node], ino)
			}
		}
	}
	return m
}

// Take hands out at most limit files to be removed. Each comes back by Removed
// or by Kept.
func (r *Registry) Take(limit int) []Loose {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaited > 0 {
		return nil
	}
	first := r.moment + 1 // of the creates under way
	for m := range r.making {
		first = min(first, m)
	}
	var taken []Loose
	for len(r.queue) > 0 && len(taken) < limit && r.queue[0].since < first {
		ino := r.queue[0].ino
		r.queue = r.queue[1:]
		if f := r.files[ino]; f != nil && f.loose() {
			f.removing, f.taken = true, true
			taken = append(taken, Loose{ino, f.unsure})
		}
	}
	if len(r.queue) == 0 {
		r.queue = nil // gives the memory of a storm back
	}
	return taken
}

// Removed forgets a file that is gone.
func (r *Registry) Removed(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.files, ino)
}

// Kept puts a file that could not be removed back. Nobody can open it all the
// same: part of its data may be gone.
func (r *Registry) Kept(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.files[ino]; f != nil {
		f.taken = false
		r.settle(ino, f)
	}
}

// Stats is what the registry has.
type Stats struct {
	Open    int `json:"open"`    // files that some node has open
	Orphans int `json:"orphans"` // files without a name
	Awaited int `json:"awaited"` // nodes that have not said yet what they have open
}

// Stats counts what the registry has.
func (r *Registry) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Stats{Awaited: r.awaited}
	for _, f := range r.files {
		if len(f.holders) > 0 {
			s.Open++
		}
		if f.orphan {
			s.Orphans++
		}
	}
	return s
}

func (r *Registry) file(ino metadata.Ino) *file {
	f := r.files[ino]
	if f == nil {
		f = &file{}
		r.files[ino] = f
	}
	return f
}

func (r *Registry) node(id metadata.NodeID) *node {
	n := r.nodes[id]
	if n == nil {
		n = &node{}
		r.nodes[id] = n
	}
	return n
}

// meet is false if a later run of by's node is known.
func (r *Registry) meet(by metadata.Holder) bool {
	n := r.node(by.Node)
	if n.run == by.Run {
		return true
	}
	if n.run > by.Run {
		return false
	}
	n.run = by.Run
	r.closeAll(by.Node, (*appends.Home).Restarted)
	return true
}

func (r *Registry) answered(n *node) {
	n.recovering = false
	if n.awaited {
		n.awaited = false
		if r.awaited--; r.awaited == 0 {
			close(r.known)
		}
		r.rouse()
	}
}

// closeAll closes the files of a client that has died, and ends its appends. It
// may have written bytes that no home knows of.
func (r *Registry) closeAll(id metadata.NodeID, end func(*appends.Home, metadata.NodeID)) {
	for ino, f := range r.files {
		end(f.appends, id)
		if r.drop(ino, f, id, ^metadata.Ticket(0)) {
			f.unsure = true
		}
		r.settle(ino, f)
	}
}

// settle looks whether a file can be removed, or forgotten.
func (r *Registry) settle(ino metadata.Ino, f *file) {
	switch {
	case f.loose():
		r.moment++
		r.queue = append(r.queue, waiting{ino, r.moment})
		r.wake()
	case len(f.holders) == 0 && !f.orphan && !f.unsure && f.appends.Idle():
		delete(r.files, ino)
	}
}

func (f *file) loose() bool { return f.orphan && !f.taken && len(f.holders) == 0 }

func (f *file) hold(id metadata.NodeID, t metadata.Ticket) {
	for i := range f.holders {
		if f.holders[i].node == id {
			f.holders[i].ticket = max(f.holders[i].ticket, t)
			return
		}
	}
	f.holders = append(f.holders, holding{id, t})
}

// Has waits for nothing: it is what to wait for until all is known, and then
// whether by has ino open.
func (r *Registry) Has(by metadata.Holder, ino metadata.Ino) (wait <-chan struct{}, open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaited > 0 {
		return r.known, false
	}
	f := r.files[ino]
	return nil, f != nil && r.meet(by) && slices.ContainsFunc(f.holders, func(h holding) bool { return h.node == by.Node })
}

// drop ends what id has open with tickets up to t, and its locks.
func (r *Registry) drop(ino metadata.Ino, f *file, id metadata.NodeID, t metadata.Ticket) bool {
	dropped := f.drop(id, t)
	if dropped && r.locks != nil {
		r.locks.NodeClosed(id, ino)
	}
	return dropped
}

// drop ends what id has open with tickets up to t.
func (f *file) drop(id metadata.NodeID, t metadata.Ticket) bool {
	for i, h := range f.holders {
		if h.node == id && h.ticket <= t {
			f.holders = slices.Delete(f.holders, i, i+1)
			f.appends.Abandon(id)
			return true
		}
	}
	return false
}
