package dataset

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
)

// Stores returns the chunk stores of all nodes.
type Stores struct {
	n        node.Node
	fence    *Fence
	own      *chunkstore.Store
	remote   func(rpc.Caller) datapath.Store
	patience time.Duration // how long calls to a silent node are repeated
}

// Of returns the store of a node.
func (s *Stores) Of(id metadata.NodeID) datapath.Store {
	if id == s.n.Self() {
		return s.own
	}
	return s.remote(s.n.To(id))
}

// Since returns the target of the staged bytes of a stage-in that began in epoch e; 0 means any epoch.
func (s *Stores) Since(e metadata.Epoch) Target { return Target{s, e} }

// Target writes staged bytes to the nodes. It repeats a write while the map says that the node serves; writing the same
// bytes twice is harmless. A node that was down since the stage-in began gets no more bytes: it takes over no files
// (stagein.Origins), and the nodes that stand in for it fetch its files.
type Target struct {
	s     *Stores
	since metadata.Epoch
}

var _ stagein.Target = Target{}

// Put writes p to the object of ino on a node.
func (t Target) Put(ctx context.Context, id metadata.NodeID, ino metadata.Ino, p []byte, off int64) error {
	if id == t.s.n.Self() {
		return t.s.fence.Write(ctx, ino, p, off)
	}
	return t.unlessLost(ctx, id, func() error { return t.s.Of(id).WriteAt(ctx, ino, p, off) })
}

// PutAll implements stagein.Target.
func (t Target) PutAll(ctx context.Context, id metadata.NodeID, ps []datapath.PiecePut) (errs []error, err error) {
	if id == t.s.n.Self() {
		return stagein.PutEach(ctx, ps, t.s.fence.Write), nil
	}
	w, ok := t.s.Of(id).(datapath.PiecePutter)
	if !ok {
		return nil, fmt.Errorf("pieces for node %d: %w", id, syscall.ENOTSUP)
	}
	errs = make([]error, len(ps)) // if the node is lost, each stays nil
	err = t.unlessLost(ctx, id, func() error {
		got, err := w.PutPieces(ctx, ps)
		copy(errs, got)
		return err
	})
	return errs, err
}

// Remove implements stagein.Target.
func (t Target) Remove(ctx context.Context, id metadata.NodeID, ino metadata.Ino) error {
	return t.unlessLost(ctx, id, func() error { return t.s.Of(id).Remove(ctx, ino) })
}

func (t Target) unlessLost(ctx context.Context, id metadata.NodeID, do func() error) error {
	if t.lost(id) {
		return ctx.Err()
	}
	err := t.s.n.Insist(ctx, id, t.s.patience, node.Unreachable, do)
	if err != nil && node.Unreachable(err) && t.lost(id) {
		return ctx.Err()
	}
	return err
}

func (t Target) lost(id metadata.NodeID) bool {
	return t.since > 0 && !t.s.n.View().Map.Throughout(id, t.since)
}
