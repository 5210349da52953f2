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

// file is where a file's objects are.
type file struct {
	object metadata.Ino
	first  []metadata.NodeID // of the stripe; with copies, where each part was first
	parts  []cluster.Part    // with copies: what first has
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

// part returns what id has first.
func (f *file) part(id metadata.NodeID) cluster.Part { return f.parts[slices.Index(f.first, id)] }

// place is an object on a node.
type place struct {
	node   metadata.NodeID
	object metadata.Ino
}

// Spans returns where the n bytes at off of the live file a are written: with copies, all those that count or are made.
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

// withSeconds returns nodes, which are some of f.first, and those with their second copies.
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

// eachWait is how long a read waits for one copy while there is another one.
const eachWait = 2 * time.Second

// use is what is done with one copy of a part.
type use func(ctx context.Context, at place, node datapath.Store) error

// onNode calls fn with the object at a place.
func (d *Data) onNode(ctx context.Context, at place, fn use) error {
	node, err := d.cfg.Nodes.Data(at.node)
	if err != nil {
		return err
	}
	return fn(ctx, at, node)
}

// errNoCopy says that no copy counts whose node serves.
var errNoCopy = fmt.Errorf("the nodes with its copies are lost: %w", syscall.EHOSTDOWN)

// onAll calls fn with all copies of the part that id has first, once each, and again with one that does not
// answer, until a newer map has excluded it; last with one that is being made (package copies).
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

// onOne calls fn with a copy of the part that id has first until one answers: this node's own, or the first.
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

// onCurrent calls fn with one copy, for a while if there is another one. The answer of a copy that a map has
// excluded meanwhile is ESHUTDOWN.
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
		return fmt.Errorf("node %d has an old copy: %w", c.Node, syscall.ESHUTDOWN)
	}
	return nil
}

// retryCopies repeats try while its error says that a node did not answer, up to lostPatience. A disk that
// failed is an error at once, unless another copy may still answer.
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
