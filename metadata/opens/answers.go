package opens

import (
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

// This file handles the answers of nodes to Recalls: which files they have open.

// Await records that a node may have files open that the registry does not know about. No file is removed until the
// node has answered.
func (r *Registry) Await(id metadata.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.node(id); !n.awaited {
		n.awaited = true
		if r.awaited++; r.awaited == 1 {
			r.allAnswered = make(chan struct{})
		}
	}
}

// Recover is Await after a restart of the home: the node's answer then restores its appends
// too. A home that kept running ignores them, because its own state is newer.
func (r *Registry) Recover(id metadata.NodeID) {
	r.Await(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.node(id); !n.recovering {
		n.recovering = true
		r.recovering++
	}
}

// Add records a part of a node's answer.
func (r *Registry) Add(by metadata.Holder, files []metadata.Opened) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.noteRun(by) {
		return
	}
	for _, o := range files {
		if t, is := r.node(by.Node).closed[o.Ino]; is && o.Ticket <= t {
			continue
		}
		f := r.file(o.Ino)
		if o.Unsure {
			r.unsure[o.Ino] = struct{}{}
		}
		f.addHolder(by.Node, o.Ticket)
		if o.Maps {
			r.restoreMap(f, by.Node)
		}
		if r.node(by.Node).recovering {
			f.report(by.Node, o)
			r.mayBuffer(f, by.Node)
		}
		if r.locks != nil && len(o.Locks) > 0 {
			r.locks.Resume(by.Node, o.Ino, o.Locks)
		}
	}
}

// Answered records that a node's answer is complete.
func (r *Registry) Answered(id metadata.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered(r.node(id))
}

// Lost closes all files of a node and stops awaiting it.
func (r *Registry) Lost(id metadata.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.node(id)
	n.losses++
	r.answered(n)
	r.closeAll(id, (*appends.Home).Abandon)
}

// Confirm closes the asked files that the node's answer lacks. The answer is complete for tickets below floor.
func (r *Registry) Confirm(by metadata.Holder, floor metadata.Ticket, asked []metadata.Ino, has []metadata.Opened) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.noteRun(by) {
		return
	}
	for _, ino := range asked {
		f := r.files[ino]
		if f == nil || floor == 0 || slices.ContainsFunc(has, func(o metadata.Opened) bool { return o.Ino == ino }) {
			continue
		}
		r.unsure[ino] = struct{}{}
		r.node(by.Node).noteClosed(ino, floor-1)
		r.drop(ino, f, by.Node, floor-1)
		r.settle(ino, f)
	}
}

// OrphanHolders returns the open orphans, by the node that has them open.
func (r *Registry) OrphanHolders() map[metadata.NodeID][]metadata.Ino {
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

func (n *node) noteClosed(ino metadata.Ino, t metadata.Ticket) {
	if !n.awaited {
		return
	}
	if n.closed == nil {
		n.closed = make(map[metadata.Ino]metadata.Ticket)
	}
	n.closed[ino] = max(n.closed[ino], t)
}
