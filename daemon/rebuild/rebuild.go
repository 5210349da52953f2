package rebuild

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/copies"
)

// Mark is a node's progress.
type Mark struct {
	// Epoch: this node has made all copies that the map of this epoch asks it to make.
	Epoch metadata.Epoch `json:"epoch,omitempty"`
	// Files counts the objects here without another copy, and Bytes their bytes; they are being copied or wait for it.
	Files int64 `json:"files,omitempty"`
	Bytes int64 `json:"bytes,omitempty"`
	// Waiting counts the objects whose home did not answer: it is unknown whether they have another copy.
	Waiting int64 `json:"waiting,omitempty"`
	// Copied is how many bytes this run of the node has copied.
	Copied int64 `json:"copied,omitempty"`
}

// Config configures a Rebuilder.
type Config struct {
	Node  node.Node
	Run   metadata.Run
	Guard *Guard
	Data  datapath.Store                                                     // this node's data, without the guard
	List  func(part uint8) ([]metadata.Ino, error)                           // objects of live files in one part
	Parts int                                                                // of the store
	Attr  func(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) // asks the inode's home
	Pace  *rate.Bucket
}

// Rebuilder makes the copies of which this node is the source.
type Rebuilder struct {
	cfg Config
	by  metadata.Epoch // epoch of the map by which due was found
	due []metadata.Ino // objects without another copy, or for which that is unknown

	tries atomic.Uint64

	mu   sync.Mutex
	got  map[metadata.Ino]cluster.Copy // guarded by mu; copies that are made but do not count yet
	mark Mark                          // guarded by mu
}

// New returns a Rebuilder that has made no copies.
func New(cfg Config) *Rebuilder {
	return &Rebuilder{cfg: cfg, got: make(map[metadata.Ino]cluster.Copy)}
}

// Mark returns the node's progress.
func (r *Rebuilder) Mark() Mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mark
}

func (r *Rebuilder) set(fn func(*Mark)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(&r.mark)
}

const (
	firstPause = 250 * time.Millisecond // pause before a failed step is retried
	lastPause  = 10 * time.Second
	callTime   = 2 * time.Second // for one range
	rangeSize  = 1 << 20
)

// Run makes copies when nodes are lost, until ctx ends.
func (r *Rebuilder) Run(ctx context.Context) {
	node.Follow(ctx, r.cfg.Node, firstPause, lastPause, func(v cluster.View) bool { return r.follow(ctx, v) })
}

// follow does what v asks for, and reports whether nothing is left.
func (r *Rebuilder) follow(ctx context.Context, v cluster.View) bool {
	self, _ := v.Map.Node(r.cfg.Node.Self())
	switch by := v.Map.Changed(); {
	case !v.Copied || v.Closing || !node.Serving(self):
		return true
	case !v.Map.Unrestored():
		r.due = nil
		r.cfg.Guard.forget(v.Map)
		r.set(func(m *Mark) {
			m.Files, m.Bytes, m.Waiting = 0, 0, 0
			clear(r.got)
		})
		return true
	case r.Mark().Epoch >= by:
		return true
	case !r.cfg.Guard.Lease.Valid(time.Now()):
		return false
	case r.by < by || r.due == nil:
		if err := r.find(ctx, by); err != nil {
			r.cfg.Node.Log().WithError(err).Warn("files without a second copy not found yet: trying again")
			return false
		}
	}
	r.count(ctx)
	for len(r.due) > 0 {
		if r.cfg.Node.View().Map.Changed() != r.by {
			return false // the next view has arrived
		}
		if !r.round(ctx) {
			return false
		}
	}
	r.set(func(m *Mark) { m.Epoch = r.by })
	r.cfg.Node.Nudge()
	return true
}

// find lists the objects that may have no other copy under the map of epoch by.
func (r *Rebuilder) find(ctx context.Context, by metadata.Epoch) error {
	r.cfg.Guard.raise(by)
	due := make([]metadata.Ino, 0)
	for part := range r.cfg.Parts {
		inos, err := r.cfg.List(uint8(part))
		if err != nil {
			return err
		}
		due = append(due, slices.DeleteFunc(inos, func(i metadata.Ino) bool { return !i.Copied() })...)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	r.by, r.due = by, due
	return nil
}

// count keeps only the objects that need a copy, and those whose home does not answer.
func (r *Rebuilder) count(ctx context.Context) {
	var files, bytes, waiting atomic.Int64
	r.each(func(ino metadata.Ino) (done bool) {
		_, due, err := r.target(ctx, ino)
		switch {
		case err != nil:
			waiting.Add(1)
		case due:
			n, _ := r.cfg.Data.Allocated(ctx, ino) // 0 if it was removed
			files.Add(1)
			bytes.Add(n)
		}
		return err == nil && !due
	})
	r.set(func(m *Mark) { m.Files, m.Bytes, m.Waiting = files.Load(), bytes.Load(), waiting.Load() })
}

// round tries each object once, and reports whether it made progress.
func (r *Rebuilder) round(ctx context.Context) bool {
	var failed atomic.Value
	before := len(r.due)
	r.each(func(ino metadata.Ino) (done bool) {
		if ctx.Err() != nil || r.cfg.Node.View().Map.Changed() != r.by {
			return false
		}
		had, _ := r.cfg.Data.Allocated(ctx, ino)
		if err := r.restore(ctx, ino); err != nil {
			failed.Store(err.Error())
			return false
		}
		r.set(func(m *Mark) { m.Files, m.Bytes = max(m.Files-1, 0), max(m.Bytes-had, 0) })
		return true
	})
	if why := failed.Load(); why != nil && ctx.Err() == nil {
		r.cfg.Node.Log().WithField("files", len(r.due)).WithField("error", why).Info("files of scratch still have one copy: trying again")
	}
	return ctx.Err() == nil && len(r.due) < before
}

// workers is how many objects are copied concurrently.
const workers = 4

// each calls fn for all due objects, some of them concurrently, and keeps those for which it returns false.
func (r *Rebuilder) each(fn func(metadata.Ino) (done bool)) {
	done := make([]bool, len(r.due))
	var g errgroup.Group
	g.SetLimit(workers)
	for i, ino := range r.due {
		g.Go(func() error {
			done[i] = fn(ino)
			return nil
		})
	}
	_ = g.Wait() // no function fails
	left := r.due[:0]
	for i, ino := range r.due {
		if !done[i] {
			left = append(left, ino)
		}
	}
	r.due = left
}

// destination is a copy to be made.
type destination struct {
	cluster.Copy
	object metadata.Ino
}

// target returns the copy of an object that this node must make. It returns false if there is none, or if the file's
// home is lost: when copies count, those of a lost home's files do not (cluster.Restoration).
func (r *Rebuilder) target(ctx context.Context, ino metadata.Ino) (to destination, due bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if m := r.cfg.Node.View().Map; m.Changed() == r.by && !m.HomeServes(ino.Home()) {
		return to, false, nil
	}
	a, err := r.cfg.Attr(ctx, ino.File())
	if errors.Is(err, syscall.ENOENT) {
		return to, false, nil
	}
	if err != nil {
		return to, false, err
	}
	m, self := r.cfg.Node.View().Map, r.cfg.Node.Self()
	if m.Changed() != r.by { // the guard still admits writers that do not know of a copy under this map
		return to, false, fmt.Errorf("the map has changed: %w", syscall.ESTALE)
	}
	for _, p := range cluster.Parts(a.Ino, a.Layout, m.Order(a.Ino, a.Layout)) {
		if p.Object(self) != ino {
			continue
		}
		c := m.CopiesOf(p)
		if from, ok := copies.Source(c); ok && from == self && !r.made(ino, c.Filling[0]) {
			return destination{c.Filling[0], p.Object(c.Filling[0].Node)}, true, nil
		}
	}
	return to, false, nil
}

func (r *Rebuilder) made(ino metadata.Ino, c cluster.Copy) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got[ino] == c
}

// restore makes the copy of an object, if one is needed.
func (r *Rebuilder) restore(ctx context.Context, ino metadata.Ino) error {
	to, due, err := r.target(ctx, ino)
	if err != nil || !due {
		return err
	}
	had, _ := r.cfg.Data.Allocated(ctx, ino) // 0 if it was removed
	q := wire.CopyRangeReq{Ino: to.object, By: r.by, Run: r.cfg.Run, Try: r.tries.Add(1), Expected: had}
	for more := true; err == nil && more; q.Seq++ {
		var n int64
		err = r.cfg.Guard.alone(ino, func() (err error) {
			ctx, cancel := context.WithTimeout(ctx, callTime)
			defer cancel()
			n, more, err = r.copyRange(ctx, ino, to.Node, &q)
			return err
		})
		r.set(func(m *Mark) { m.Copied += n })
		if err == nil {
			err = r.cfg.Pace.Take(ctx, n)
		}
	}
	if err == nil {
		err = r.call(ctx, to.Node, &rpc.Call{Op: wire.OpSync, Body: &wire.InoReq{Ino: to.object}})
	}
	if err != nil {
		return fmt.Errorf("copy of inode %v for node %d: %w", ino.File(), to.Node, err)
	}
	if _, err := r.cfg.Attr(ctx, ino.File()); errors.Is(err, syscall.ENOENT) { // it was removed meanwhile
		return r.call(ctx, to.Node, &rpc.Call{Op: wire.OpRemoveObject, Body: &wire.InoReq{Ino: to.object}})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got[ino] = to.Copy
	return nil
}

func (r *Rebuilder) call(ctx context.Context, id metadata.NodeID, c *rpc.Call) error {
	return r.cfg.Node.To(id).Do(ctx, c)
}

// copyRange copies n bytes of the first data at or after q.Off; more data may follow. The first call may copy no data,
// because an object without data needs a copy, too.
func (r *Rebuilder) copyRange(ctx context.Context, from metadata.Ino, to metadata.NodeID, q *wire.CopyRangeReq) (n int64, more bool, err error) {
	var b []byte
	if q.Seq > 0 {
		e, err := r.cfg.Data.Data(ctx, from, q.Off)
		if err != nil || e == datapath.NoData {
			return 0, false, err
		}
		b = make([]byte, min(rangeSize, e.To-e.From))
		got, err := r.cfg.Data.ReadAt(ctx, from, b, e.From)
		if err != nil || got == 0 {
			return 0, false, err
		}
		b, q.Off, q.Expected = b[:got], e.From, 0
	}
	err = r.call(ctx, to, &rpc.Call{Op: wire.OpCopyRange, Body: q, Data: [][]byte{b}})
	q.Off += int64(len(b))
	return int64(len(b)), true, err
}
