package stripe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/copies"
)

// file describes where a file's objects are.
type file struct {
	object metadata.Ino
	first  []metadata.NodeID // of the stripe; with copies, the first node of each part
	parts  []cluster.Part    // with copies: the parts of the nodes in first
}

// fileOn splits the nodes of the file a (cluster.Map.Order).
func fileOn(a *metadata.Attr, order []metadata.NodeID) file {
	f := file{object: a.Object(), first: order}
	if f.copied() {
		f.parts = cluster.Parts(a.Ino, a.Layout, order)
		f.first = order[:len(f.parts)]
	}
	return f
}

func (f *file) copied() bool { return f.object.Copied() }

// part returns the part whose first node is id.
func (f *file) part(id metadata.NodeID) cluster.Part { return f.parts[slices.Index(f.first, id)] }

// place is an object on a node.
type place struct {
	node   metadata.NodeID
	object metadata.Ino
}

// Spans returns where the n bytes at off of the live file a are written: with copies, to all that count or are made.
func (d *Data) Spans(a *metadata.Attr, order []metadata.NodeID, off, n int64) []datapath.Span {
	f := fileOn(a, order)
	spans := datapath.Spans(a.Layout.Chunk(), f.first, off, n)
	if !f.copied() {
		return spans
	}
	var all []datapath.Span
	for _, s := range spans {
		now := d.cfg.Nodes.CopiesOf(f.part(s.Node))
		for _, c := range slices.Concat(now.Current, now.Filling) {
			s.Node = c.Node
			all = append(all, s)
		}
	}
	return all
}

// withSeconds returns nodes, which are a subset of f.first, and the nodes with the second copies of their parts.
func (f *file) withSeconds(nodes []metadata.NodeID) []metadata.NodeID {
	if !f.copied() {
		return nodes
	}
	all := slices.Clone(nodes)
	for _, id := range nodes {
		all = append(all, f.part(id).Copies[1:]...)
	}
	return all
}

// eachWait bounds how long a read waits for one copy while there is another one.
const eachWait = 2 * time.Second

// use is an operation on one copy of a part.
type use func(ctx context.Context, at place, node datapath.Store) error

// onNode calls fn with the object at a place.
func (d *Data) onNode(ctx context.Context, at place, fn use) error {
	node, err := d.cfg.Nodes.Data(at.node)
	if err != nil {
		return err
	}
	return fn(ctx, at, node)
}

// errNoCopy reports that no node with a copy that counts is serving.
var errNoCopy = fmt.Errorf("all nodes with a copy are down: %w", syscall.EHOSTDOWN)

// onAll calls fn once with each copy of the part whose first node is id. It calls fn again with a copy that does not
// answer, until a newer map has excluded that copy. The copy that is being made comes last (package copies).
func (d *Data) onAll(ctx context.Context, f *file, id metadata.NodeID, fn use) error {
	if !f.copied() {
		return d.onNode(ctx, place{id, f.object}, fn)
	}
	var mu sync.Mutex
	var w copies.Write // guarded by mu
	part := f.part(id)
	return d.retryCopies(ctx, func() error {
		for {
			now := d.cfg.Nodes.CopiesOf(part)
			next := w.Next(now)
			if len(now.Current) == 0 {
				return errNoCopy
			}
			if len(next) == 0 {
				return nil
			}
			errs := make([]error, len(next))
			_ = wait.Each(ctx, next, func(_ context.Context, c cluster.Copy) error { // all end, also after an error
				err := d.onNode(ctx, place{c.Node, part.Object(c.Node)}, fn)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					w.Done(now, c)
				}
				errs[slices.Index(next, c)] = err
				return nil
			})
			if err := errors.Join(errs...); err != nil && len(w.Next(d.cfg.Nodes.CopiesOf(part))) > 0 {
				return err
			}
		}
	})
}

// onOne calls fn with one copy after another of the part that id has first, this node's own first, until one answers.
func (d *Data) onOne(ctx context.Context, f *file, id metadata.NodeID, fn use) error {
	if !f.copied() {
		return d.onNode(ctx, place{id, f.object}, fn)
	}
	part := f.part(id)
	return d.retryCopies(ctx, func() error {
		now := d.cfg.Nodes.CopiesOf(part).Current
		if len(now) == 0 {
			return errNoCopy
		}
		if own := slices.IndexFunc(now, func(c cluster.Copy) bool { return c.Node == d.cfg.Self }); own > 0 {
			now[0], now[own] = now[own], now[0]
		}
		var errs []error
		for _, c := range now {
			err := d.onCurrent(ctx, part, c, len(now) > 1, fn)
			if err == nil || ctx.Err() != nil {
				return err
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// onCurrent calls fn with one copy, for a limited time if there is another one. If a map has excluded the copy
// meanwhile, its answer is replaced by ESHUTDOWN.
func (d *Data) onCurrent(ctx context.Context, part cluster.Part, c cluster.Copy, another bool, fn use) error {
	limited, cancel := ctx, context.CancelFunc(func() {})
	if another {
		limited, cancel = context.WithTimeout(ctx, eachWait)
	}
	defer cancel()
	if err := d.onNode(limited, place{c.Node, part.Object(c.Node)}, fn); err != nil {
		return err
	}
	if !slices.Contains(d.cfg.Nodes.CopiesOf(part).Current, c) {
		return fmt.Errorf("copy on node %d is stale: %w", c.Node, syscall.ESHUTDOWN)
	}
	return nil
}

// retryCopies repeats try while its error says that a node did not answer, up to lostPatience. A disk failure is
// returned at once, unless another copy may still answer.
func (d *Data) retryCopies(ctx context.Context, try func() error) error {
	since := d.cfg.Now()
	for b := retry.New(firstPause, longestPause, 0); ; {
		err := try()
		if err == nil || err == errNoCopy || ctx.Err() != nil || !rpc.Unanswered(err) || d.cfg.Now().Sub(since) > lostPatience {
			return err
		}
		if !b.Wait(ctx) {
			return wait.Errno(ctx)
		}
	}
}
