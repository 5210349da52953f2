package replicas

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// Config configures Replicas.
type Config struct {
	Node  node.Node
	Store *chunkstore.Store
	// Write is the store's WriteSpare, which fails once the dataset has ended.
	Write func(ctx context.Context, ino metadata.Ino, p []byte, off int64) error
	// Put is the store's WriteAt, with the same restriction.
	Put func(ctx context.Context, ino metadata.Ino, p []byte, off int64) error
	// Of returns the store of another node.
	Of func(id metadata.NodeID) datapath.Store
	// Manifest returns the manifest of a dataset, if it is here.
	Manifest func(ds cluster.Dataset) (*manifest.Table, bool)
	// Stored reports whether this node stores a piece as its own, because the piece fell to it. It must not call
	// Replicas, whose lock is held.
	Stored func(p fill.PieceID) bool
	// Coming reports whether this node is fetching a piece as its own.
	Coming func(p fill.PieceID) bool
	// Sums calls see with the checksum of each piece of a dataset that the owner has staged.
	Sums func(ctx context.Context, ds metadata.DatasetID, owner metadata.NodeID, see func(p fill.PieceID, sum [16]byte)) error
	// Compare reads an object of this node from its drive and compares it with its checksum.
	Compare func(ctx context.Context, p fill.PieceSum) error
	// Plan returns the access plan that the registry has for a dataset; nil if it is not here yet.
	Plan func(ds cluster.Dataset) *accessplan.Plan
	Rate *rate.Bucket // bounds the bytes that replicas read from other nodes; nil: unlimited
}

// Mark is a node's progress with its replicas of a dataset.
type Mark struct {
	Node  metadata.NodeID `json:"node"`
	Below uint64          `json:"below"` // the node has its replicas at lower positions
	Files int64           `json:"files"` // replicas on the node; a striped file counts by its first chunk
	Bytes int64           `json:"bytes"`
	// OfFiles and OfBytes count the replicas that the map assigns to the node.
	OfFiles int64 `json:"of_files"`
	OfBytes int64 `json:"of_bytes"`
	// Full: there is no free room for more. Given counts the bytes given back to scratch.
	Full  bool  `json:"full,omitempty"`
	Given int64 `json:"given,omitempty"`
	// Order names the access plan by which the node orders its replicas; "": the order of all nodes.
	Order string `json:"order,omitempty"`
}

// Replicas holds the replicas of one node, and the marks of the others.
type Replicas struct {
	cfg    Config
	serial atomic.Uint32 // numbers temporary objects
	bytes  atomic.Int64  // bytes that can be given back
	on     atomic.Bool   // there is a dataset with replicas
	notify atomic.Pointer[func(ds metadata.DatasetID, gone []metadata.Ino)]
	pace   pacer

	removing sync.Mutex // held while the objects of leaving replicas are removed

	mu    sync.RWMutex
	sets  map[metadata.DatasetID]*set                     // guarded by mu
	marks map[metadata.DatasetID]map[metadata.NodeID]Mark // guarded by mu; of all nodes
	seen  uint64                                          // guarded by mu; version of marks
}

// New returns Replicas without a dataset.
func New(cfg Config) *Replicas {
	return &Replicas{cfg: cfg, sets: make(map[metadata.DatasetID]*set), marks: make(map[metadata.DatasetID]map[metadata.NodeID]Mark)}
}

// SetIdle sets idle, which returns how long this node has not read datasets from other nodes.
func (r *Replicas) SetIdle(idle func() time.Duration) { r.pace.idle.Store(&idle) }

// SetNotify sets f, which is called when the replicas of a dataset are complete on this node, or with the replicas that
// were removed.
func (r *Replicas) SetNotify(f func(ds metadata.DatasetID, gone []metadata.Ino)) { r.notify.Store(&f) }

func (r *Replicas) changed(ds metadata.DatasetID, gone []metadata.Ino) {
	r.cfg.Node.Nudge()
	if f := r.notify.Load(); f != nil {
		r.cfg.Node.Spawn(func(context.Context) { (*f)(ds, gone) }) // it may call the kernel, which may wait for this node
	}
}

// Has reports whether this node has a replica of a file that is whole on one node.
func (r *Replicas) Has(ino metadata.Ino) bool {
	at, ok := r.Find(ino, 0, 0)
	return ok && at.Object == ino
}

// Location is the place of a replica's bytes on this node.
type Location struct {
	Piece  fill.PieceID
	Object metadata.Ino
	Off    int64 // offset in the object
}

// Find returns where this node has, as a replica, the bytes [off, off+n) that a reader expects in a stand-in's object
// of ino.
func (r *Replicas) Find(ino metadata.Ino, off, n int64) (at Location, ok bool) {
	if !r.on.Load() {
		return at, false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := r.sets[ino.Dataset()]
	if s == nil {
		return at, false
	}
	p, off := s.pieceAt(ino, off)
	f := s.find(p)
	if f == nil || f.state != present || s.striped[ino] != nil && off+n > f.size {
		return at, false
	}
	return Location{p, s.object(p), off}, true
}

// Pieces returns the pieces of a file of which this node has replicas.
func (r *Replicas) Pieces(ino metadata.Ino) (all []fill.PieceID) {
	if !r.on.Load() {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := r.sets[ino.Dataset()]
	if s == nil {
		return nil
	}
	for chunk := range s.striped[ino].chunks() {
		if f := s.find(fill.PieceID{Ino: ino, Chunk: chunk}); f != nil && f.state == present {
			all = append(all, f.PieceID)
		}
	}
	return all
}

// Foreign reports whether the byte at off of this node's object of ino belongs to another node, so that this node must
// not fetch it from the source: this node had a replica, or a reader assumed so.
func (r *Replicas) Foreign(ino metadata.Ino, off int64) bool {
	s := r.set(ino)
	if s == nil {
		return false
	}
	p, _ := s.pieceAt(ino, off)
	owner, _, _, err := s.owned(p)
	return err == nil && r.cfg.Node.View().Map.Holder(ino, owner) != r.cfg.Node.Self() && !r.cfg.Stored(p)
}

// set returns the set of a file's dataset; nil if there is none.
func (r *Replicas) set(ino metadata.Ino) *set {
	if !r.on.Load() {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sets[ino.Dataset()]
}

// mostPlaces is the number of replicas that a reader chooses from.
const mostPlaces = 7

// Where appends to buf the nodes that have a replica of owner's piece p, as far as this node knows.
func (r *Replicas) Where(buf []metadata.NodeID, p fill.PieceID, owner metadata.NodeID) []metadata.NodeID {
	if !r.on.Load() {
		return buf
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	ino := p.Ino
	s := r.sets[ino.Dataset()]
	if s == nil {
		return buf
	}
	self, from := r.cfg.Node.Self(), len(buf)
	if s.find(p).here() {
		buf = append(buf, self)
	}
	m, pos, marks := r.cfg.Node.View().Map, s.m.ReplicaPosition(ino, p.Chunk), r.marks[ino.Dataset()]
	has := func(id metadata.NodeID) bool { return id != self && s.reached(marks[id], ino, pos) }
	if s.n < len(m.Nodes)-1 {
		var few [8]metadata.NodeID
		for _, id := range m.Replicas(few[:0], ino, owner, s.n) {
			if has(id) && len(buf)-from < mostPlaces {
				buf = append(buf, id)
			}
		}
		return buf
	}
	holder := m.Holder(ino, owner)
	first := int(pos>>32) + int(self) // spreads readers over the nodes
	for i := range m.Nodes {
		n := &m.Nodes[(first+i)%len(m.Nodes)]
		if n.State == cluster.Up && n.ID != holder && has(n.ID) && len(buf)-from < mostPlaces {
			buf = append(buf, n.ID)
		}
	}
	return buf
}

// Report returns this node's progress, by dataset.
func (r *Replicas) Report() map[metadata.DatasetID]Mark {
	if !r.on.Load() {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make(map[metadata.DatasetID]Mark, len(r.sets))
	for id, s := range r.sets {
		all[id] = s.mark(r.cfg.Node.Self())
	}
	return all
}

// Seen returns the version of the marks that this node knows.
func (r *Replicas) Seen() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.seen
}

// Hear stores the marks of all nodes and their version.
func (r *Replicas) Hear(version uint64, all map[metadata.DatasetID][]Mark) {
	marks := make(map[metadata.DatasetID]map[metadata.NodeID]Mark, len(all))
	for id, ms := range all {
		marks[id] = make(map[metadata.NodeID]Mark, len(ms))
		for _, m := range ms {
			marks[id][m.Node] = m
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen, r.marks = version, marks
}

// Marks returns all nodes' marks for a dataset: this node's current mark, and the others' last reported ones.
func (r *Replicas) Marks(id metadata.DatasetID) []Mark {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []Mark
	self := r.cfg.Node.Self()
	for n, m := range r.marks[id] {
		if n != self {
			all = append(all, m)
		}
	}
	if s := r.sets[id]; s != nil {
		all = append(all, s.mark(self))
	}
	slices.SortFunc(all, func(a, b Mark) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// End drops a dataset that failed; its objects are removed with the dataset.
func (r *Replicas) End(id metadata.DatasetID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sets[id]; s != nil {
		r.bytes.Add(-s.spare)
		delete(r.sets, id)
	}
}

// progressStep is the precision of a mark while replicas are made. It keeps marks from changing often.
const progressStep = math.MaxUint64/64 + 1
