package opens

import (
	"context"
	"slices"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// mapPatience bounds how long an open waits for the answers of nodes before it is refused the right to map the file.
const mapPatience = 2 * time.Second

// mayMap reports whether by, which has ino open, may map it shared and writable. Before it refuses, it asks the node
// that has the right, whose close may be in flight.
func (f *Files) mayMap(ctx context.Context, by metadata.Holder, ino metadata.Ino) bool {
	ok, others, wait := f.Map(by, ino)
	if wait != nil && await(ctx, wait, mapPatience) == nil {
		ok, others, wait = f.Map(by, ino)
	}
	if ok || wait != nil || f.cfg.Recall == nil {
		return ok
	}
	ctx, cancel := context.WithTimeout(ctx, mapPatience)
	defer cancel()
	for _, m := range others {
		r, err := f.cfg.Recall(ctx, m.Node, metadata.Recall{Run: f.cfg.Run, Only: []metadata.Ino{ino}})
		if err != nil {
			return false
		}
		f.Unmap(metadata.Holder{Node: m.Node, Run: r.Run}, m, r)
	}
	ok, _, _ = f.Map(by, ino)
	return ok
}

// Mapper is a node that may map a file shared and writable.
type Mapper struct {
	Node metadata.NodeID
	Ino  metadata.Ino
	seq  uint64 // of the grant
}

// Map gives by, which has ino open, the right to map it shared and writable, unless other nodes have it. While nodes
// are awaited it instead returns a channel that is closed when all have answered. It does not block.
func (r *Registry) Map(by metadata.Holder, ino metadata.Ino) (ok bool, others []Mapper, wait <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaited > 0 {
		return false, nil, r.allAnswered
	}
	f := r.files[ino]
	if f == nil || !r.noteRun(by) {
		return false, nil, nil
	}
	for _, h := range f.holders {
		if h.maps != 0 && h.node != by.Node {
			others = append(others, Mapper{h.node, ino, h.maps})
		}
	}
	i, has := f.holder(by.Node)
	if len(others) > 0 || !has {
		return false, others, nil
	}
	r.seq++
	f.holders[i].maps = r.seq
	return true, nil, nil
}

// Unmap takes the right from a node whose answer shows that it does not use it, unless the node was given the right
// again since m was read.
func (r *Registry) Unmap(by metadata.Holder, m Mapper, has metadata.Recalled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[m.Ino]
	if f == nil || !r.noteRun(by) || slices.ContainsFunc(has.Files, func(o metadata.Opened) bool { return o.Ino == m.Ino && o.Maps }) {
		return
	}
	for i, h := range f.holders {
		if h.node == m.Node && h.maps == m.seq && h.ticket < has.Floor {
			f.holders[i].maps = 0
		}
	}
}

// restoreMap records that a node reports that it has the right.
func (r *Registry) restoreMap(f *file, id metadata.NodeID) {
	for i, h := range f.holders {
		if h.node == id && h.maps == 0 {
			r.seq++
			f.holders[i].maps = r.seq
		}
	}
}

// Alone reports whether no node other than that of by has, or may have, ino open.
func (r *Registry) Alone(by metadata.Holder, ino metadata.Ino) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[ino]
	return r.awaited == 0 && (f == nil || f.alone(by.Node))
}
