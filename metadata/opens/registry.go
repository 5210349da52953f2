package opens

import (
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

// Registry records which nodes have which files of one home open, and which orphans can be removed. It does no I/O and
// uses no clock.
type Registry struct {
	wake  func() // called when Take may have files to hand out; must not block
	locks Locker

	mu          sync.Mutex
	files       map[metadata.Ino]*file
	nodes       map[metadata.NodeID]*node
	awaited     int                       // nodes whose answer to a Recall is outstanding
	recovering  int                       // awaited nodes that were not asked since the home restarted
	recovered   metadata.Run              // how often all nodes have answered after a restart
	allAnswered chan struct{}             // closed while awaited is 0
	queue       []queued                  // removable files, by the seq at which they became removable
	creating    map[uint64]struct{}       // creates in progress, by the seq at which they began
	outdated    []metadata.Ino            // files whose size or version must be published
	seq         uint64                    // orders creates, the queue, and grants of mappings
	unsure      map[metadata.Ino]struct{} // files that may have objects beyond their size, until removed
	frozen      map[metadata.Ino]uint64   // number of the truncation announced for each of these files
	over        *over                     // numbers of the last truncations that ended without a size
}

// file is an inode that is open, is an orphan, or has append state.
type file struct {
	holders  []holder // by node
	orphan   bool     // the file has no name
	resting  bool     // the file is not removed yet, so it can still be opened
	dead     bool     // the removal has begun, so the file can no longer be opened
	removing bool     // handed out by Take
	// grown, renew: the file is in Registry.outdated, because all nodes may see more of it, or because its bytes may
	// have changed without a change of st_ctime.
	grown, renew bool
	publishing   bool          // the size or version is being published
	appends      *appends.Home // nil until the first append
}

type holder struct {
	node   metadata.NodeID
	ticket metadata.Ticket
	maps   uint64 // seq at which it got the right to map the file shared and writable; 0 if it has none
	alone  uint64 // seq of the grant of buffered appends, as no other node had the file open; 0 if none or revoked
}

// node is the state of a client.
type node struct {
	run     metadata.Run
	losses  int  // how often the client was given up
	awaited bool // the client has not reported its open files yet
	// recovering: the client's appends may have begun before this run of the home, so its report must include them.
	recovering bool
	// closed has the files that the client closed while it was awaited: its answer may be older.
	closed map[metadata.Ino]metadata.Ticket
}

type queued struct {
	ino   metadata.Ino
	since uint64
}

// Removable is a file without a name that no node has open. The caller of Take removes it.
type Removable struct {
	Ino metadata.Ino
	// Unsure: the size does not determine which nodes store bytes of the file.
	Unsure bool
}

// Locker keeps the locks on files. A node's locks on a file end when the node closes it. The methods must not block or
// call the registry.
type Locker interface {
	// NodeClosed ends the locks of a node on a file.
	NodeClosed(node metadata.NodeID, ino metadata.Ino)
	// Resume restores locks that a node held in an earlier run of the home, except for locks that conflict with later
	// ones; it returns these exceptions.
	Resume(node metadata.NodeID, ino metadata.Ino, locks []metadata.Lock) (lost []metadata.Lock)
}

// NewRegistry returns an empty registry. It calls wake whenever Take may have files to hand out; wake must not block or
// call the registry. locks may be nil.
func NewRegistry(wake func(), locks Locker) *Registry {
	return &Registry{
		wake:        wake,
		locks:       locks,
		allAnswered: closedChan(),
		files:       make(map[metadata.Ino]*file),
		nodes:       make(map[metadata.NodeID]*node),
		creating:    make(map[uint64]struct{}),
		unsure:      make(map[metadata.Ino]struct{}),
		frozen:      make(map[metadata.Ino]uint64),
		over:        newOver(),
	}
}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Open records that by has ino open. It returns ESTALE if the file is being removed, or if a later run of by's node is
// known.
func (r *Registry) Open(by metadata.Holder, ino metadata.Ino, t metadata.Ticket) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.noteRun(by) {
		return fmt.Errorf("inode %v: an earlier run of node %d: %w", ino, by.Node, syscall.ESTALE)
	}
	f := r.file(ino)
	if f.dead {
		return fmt.Errorf("inode %v is unlinked and being removed: %w", ino, syscall.ESTALE)
	}
	f.addHolder(by.Node, t)
	return nil
}

// Held reports whether a node has, or may have, ino open: an awaited node may have every file open.
func (r *Registry) Held(ino metadata.Ino) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[ino]
	return r.awaited > 0 || f != nil && len(f.holders) > 0
}

// Close records that by has closed a file.
func (r *Registry) Close(by metadata.Holder, o metadata.Opened) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.noteRun(by) {
		return
	}
	r.node(by.Node).noteClosed(o.Ino, o.Ticket)
	if r.files[o.Ino] == nil && !o.Unsure {
		return
	}
	f := r.file(o.Ino)
	if o.Unsure {
		r.doubt(o.Ino, f)
	}
	r.drop(o.Ino, f, by.Node, o.Ticket)
	r.settle(o.Ino, f)
}

// Orphaned records that ino has lost its last name. An orphan of an earlier run of the home is unsure.
func (r *Registry) Orphaned(ino metadata.Ino, unsure bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	f.orphan = true
	if unsure {
		r.unsure[ino] = struct{}{}
	}
	r.settle(ino, f)
}

// Rest is Orphaned for a file that is not removed before Rested.
func (r *Registry) Rest(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	f.orphan, f.resting = true, true
}

// Rested ends the rest of files.
func (r *Registry) Rested(inos []metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ino := range inos {
		if f := r.files[ino]; f != nil && f.resting {
			f.resting = false
			r.settle(ino, f)
		}
	}
}

// BeginCreate records that a create is in progress: the new file may be unlinked before its open is recorded. Until
// EndCreate no file is removed that became an orphan meanwhile.
func (r *Registry) BeginCreate() (seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	r.creating[r.seq] = struct{}{}
	return r.seq
}

// EndCreate ends the create that BeginCreate began.
func (r *Registry) EndCreate(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.creating, seq)
	r.wakeIfQueued()
}

// wakeIfQueued calls wake if the queue is not empty.
func (r *Registry) wakeIfQueued() {
	if len(r.queue) > 0 {
		r.wake()
	}
}

// NoteRun records the run of a node's client, and closes all files of earlier runs.
func (r *Registry) NoteRun(by metadata.Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteRun(by)
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

// noteRun is NoteRun with mu held. It returns false if a later run of the node is known.
func (r *Registry) noteRun(by metadata.Holder) bool {
	n := r.node(by.Node)
	if n.run == by.Run {
		return true
	}
	if n.run > by.Run {
		return false
	}
	n.run, n.closed = by.Run, nil
	r.closeAll(by.Node, (*appends.Home).Restarted)
	return true
}

func (r *Registry) answered(n *node) {
	if n.closed = nil; n.recovering {
		n.recovering = false
		if r.recovering--; r.recovering == 0 {
			r.recovered++
		}
	}
	if n.awaited {
		n.awaited = false
		if r.awaited--; r.awaited == 0 {
			close(r.allAnswered)
		}
		r.wakeIfQueued()
	}
}

// closeAll closes the files of a client that has died, and ends its appends. The client may have written to each of the
// files.
func (r *Registry) closeAll(id metadata.NodeID, end func(*appends.Home, metadata.NodeID)) {
	for ino, f := range r.files {
		r.abandon(ino, f, id, end)
		if r.drop(ino, f, id, ^metadata.Ticket(0)) {
			r.doubt(ino, f)
		}
		r.settle(ino, f)
	}
}

// settle queues a file that is removable, and forgets a file without state.
func (r *Registry) settle(ino metadata.Ino, f *file) {
	switch {
	case f.removable():
		r.seq++
		r.queue = append(r.queue, queued{ino, r.seq})
		r.wake()
	case len(f.holders) == 0 && !f.orphan && !f.grown && !f.renew && !f.publishing && f.appends.Idle():
		delete(r.files, ino)
	}
}

func (f *file) removable() bool { return f.orphan && !f.resting && !f.removing && len(f.holders) == 0 }

func (f *file) addHolder(id metadata.NodeID, t metadata.Ticket) {
	i, has := f.holder(id)
	if has {
		f.holders[i].ticket = max(f.holders[i].ticket, t)
		return
	}
	f.holders = slices.Insert(f.holders, i, holder{node: id, ticket: t})
}

// Has reports whether by has ino open, and if so calls do: the file is not closed before do returns. While nodes are
// awaited it instead returns a channel that is closed when all have answered. Neither it nor do may block.
func (r *Registry) Has(by metadata.Holder, ino metadata.Ino, do func()) (wait <-chan struct{}, open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaited > 0 {
		return r.allAnswered, false
	}
	if r.noteRun(by) && r.files[ino] != nil {
		_, open = r.files[ino].holder(by.Node)
	}
	if open {
		do()
	}
	return nil, open
}

// drop closes the file for node id if its ticket is at most t, and ends the node's locks.
func (r *Registry) drop(ino metadata.Ino, f *file, id metadata.NodeID, t metadata.Ticket) bool {
	dropped := f.drop(id, t)
	if dropped {
		r.abandon(ino, f, id, (*appends.Home).Closed)
	}
	if dropped && r.locks != nil {
		r.locks.NodeClosed(id, ino)
	}
	return dropped
}

// drop closes f for node id if its ticket is at most t.
func (f *file) drop(id metadata.NodeID, t metadata.Ticket) bool {
	i, has := f.holder(id)
	if !has || f.holders[i].ticket > t {
		return false
	}
	f.holders = slices.Delete(f.holders, i, i+1)
	return true
}
