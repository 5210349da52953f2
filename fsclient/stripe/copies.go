package stripe

import (
	"cmp"
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
	"github.com/bivouacfs/bivouac/metadata/copies"
)

// file is where a file's objects are.
type file struct {
	object        metadata.Ino
	since         metadata.Epoch
	first, second []metadata.NodeID // second[i] has the second copy of first[i]; empty without one
}

// fileOn splits the nodes of the file a (cluster.Map.Order).
func fileOn(a *metadata.Attr, order []metadata.NodeID) file {
	f := file{object: a.Object(), since: a.Layout.Epoch, first: order}
	if f.object.Copied() && len(order) > 1 {
		f.first, f.second = order[:len(order)/2], order[len(order)/2:]
	}
	return f
}

func (f *file) copied() bool { return f.object.Copied() }

// copies returns the nodes with the part that id has first.
func (f *file) copies(id metadata.NodeID) []metadata.NodeID {
	if i := slices.Index(f.first, id); len(f.second) > 0 && i >= 0 {
		return []metadata.NodeID{id, f.second[i]}
	}
	return []metadata.NodeID{id}
}

// Spans returns where the n bytes at off of the live file a are written: with copies, all those that count.
func (d *Data) Spans(a *metadata.Attr, order []metadata.NodeID, off, n int64) []datapath.Span {
	f := fileOn(a, order)
	spans := datapath.Spans(a.Layout.Chunk(), f.first, off, n)
	if !f.copied() {
		return spans
	}
	var all []datapath.Span
	for _, s := range spans {
		for _, id := range d.cfg.Nodes.Current(nil, f.copies(s.Node), f.since) {
			s.Node = id
			all = append(all, s)
		}
	}
	return all
}

// withSeconds returns nodes, which are some of f.first, and those with their second copies.
func (f *file) withSeconds(nodes []metadata.NodeID) []metadata.NodeID {
	if len(f.second) == 0 {
		return nodes
	}
	all := slices.Clone(nodes)
	for _, id := range nodes {
		all = append(all, f.copies(id)[1])
	}
	return all
}

// eachWait is how long a read waits for one copy while there is another one.
const eachWait = 2 * time.Second

// use is what is done with one copy of a part.
type use func(ctx context.Context, id metadata.NodeID, node datapath.Store) error

// onNode calls fn with the node id.
func (d *Data) onNode(ctx context.Context, id metadata.NodeID, fn use) error {
	node, err := d.cfg.Nodes.Data(id)
	if err != nil {
		return err
	}
	return fn(ctx, id, node)
}

// errNoCopy says that no copy counts whose node serves.
var errNoCopy = fmt.Errorf("the nodes with its copies are lost: %w", syscall.EHOSTDOWN)

// onAll calls fn with all copies of the part that id has first, once each, and again with one that does not
// answer, until a newer map has excluded it (package copies).
func (d *Data) onAll(ctx context.Context, f *file, id metadata.NodeID, fn use) error {
	if !f.copied() {
		return d.onNode(ctx, id, fn)
	}
	var mu sync.Mutex
	var w copies.Write // guarded by mu
	all := f.copies(id)
	return d.retryCopies(ctx, func() error {
		now := d.cfg.Nodes.Current(nil, all, f.since)
		missing := w.Missing(now)
		if len(now) == 0 {
			return errNoCopy
		}
		errs := make([]error, len(all))
		_ = wait.Each(ctx, missing, func(_ context.Context, id metadata.NodeID) error { // all end, also after an error
			err := d.onNode(ctx, id, fn)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				w.Done(id)
			}
			errs[slices.Index(all, id)] = err
			return nil
		})
		now = d.cfg.Nodes.Current(nil, all, f.since)
		switch {
		case len(now) == 0:
			return errNoCopy
		case len(w.Missing(now)) == 0:
			return nil
		}
		return cmp.Or(errors.Join(errs...), errReturned)
	})
}

// errReturned says that a node has returned that was away when the copies were looked up.
var errReturned = fmt.Errorf("a node with a copy has returned: %w", syscall.EHOSTDOWN)

// onOne calls fn with a copy of the part that id has first until one answers: this node's own, or the first.
func (d *Data) onOne(ctx context.Context, f *file, id metadata.NodeID, fn use) error {
	if !f.copied() {
		return d.onNode(ctx, id, fn)
	}
	all := f.copies(id)
	if len(all) > 1 && all[1] == d.cfg.Self {
		slices.Reverse(all)
	}
	return d.retryCopies(ctx, func() error {
		now := d.cfg.Nodes.Current(nil, all, f.since)
		if len(now) == 0 {
			return errNoCopy
		}
		var errs []error
		for _, id := range now {
			err := d.onCurrent(ctx, f, id, len(now) > 1, fn)
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
func (d *Data) onCurrent(ctx context.Context, f *file, id metadata.NodeID, another bool, fn use) error {
	limited, cancel := ctx, context.CancelFunc(func() {})
	if another {
		limited, cancel = context.WithTimeout(ctx, eachWait)
	}
	defer cancel()
	if err := d.onNode(limited, id, fn); err != nil {
		return err
	}
	if !slices.Contains(d.cfg.Nodes.Current(nil, f.copies(f.firstOf(id)), f.since), id) {
		return fmt.Errorf("node %d has an old copy: %w", id, syscall.ESHUTDOWN)
	}
	return nil
}

// firstOf returns the node that has the part first of which id has a copy.
func (f *file) firstOf(id metadata.NodeID) metadata.NodeID {
	if i := slices.Index(f.second, id); i >= 0 {
		return f.first[i]
	}
	return id
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
