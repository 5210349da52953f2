package stripe

import (
	"context"
	"fmt"
	"math"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
)

// Write writes p at offset off of the live file a. It returns how many bytes from the start of p are written, all of
// them unless it fails, and the nodes that it wrote to.
func (d *Data) Write(ctx context.Context, a *metadata.Attr, order []metadata.NodeID, p []byte, off int64) (int, []metadata.NodeID, error) {
	if off < 0 {
		return 0, nil, fmt.Errorf("inode %v: write at %d: %w", a.Ino, off, syscall.EINVAL)
	}
	if off > math.MaxInt64-int64(len(p)) {
		return 0, nil, fmt.Errorf("inode %v: write at %d: %w", a.Ino, off, syscall.EFBIG)
	}
	pieces := make([]piece, 0, 2)
	var nodes []metadata.NodeID
	f := fileOn(a, order)
	for _, s := range datapath.Spans(a.Layout.Chunk(), f.first, off, int64(len(p))) {
		pieces = append(pieces, piece{Span: s, done: new(bool)})
		if !slices.Contains(nodes, s.Node) {
			nodes = append(nodes, s.Node)
		}
	}
	nodes = f.withSeconds(nodes)
	d.writing.Add(1)
	defer d.writing.Add(-1)
	// A piece that fails does not stop earlier pieces: their bytes count as written.
	err := wait.Each(ctx, pieces, func(_ context.Context, w piece) error {
		err := d.writeSpan(ctx, &f, w.Span, p[w.Pos-off:][:w.Len])
		*w.done = err == nil
		return err
	})
	n := 0
	for _, w := range pieces {
		if !*w.done {
			break
		}
		n += int(w.Len)
	}
	return n, nodes, err
}

// piece is a span that is being written.
type piece struct {
	datapath.Span
	done *bool
}

func (d *Data) writeSpan(ctx context.Context, f *file, s datapath.Span, p []byte) error {
	err := d.onAll(ctx, f, s.Node, func(ctx context.Context, at place, node datapath.Store) error {
		if err := node.WriteAt(ctx, at.object, p, s.Off); err != nil {
			return err
		}
		d.count(&d.writeLocal, &d.writeRemote, at.node, len(p))
		return nil
	})
	if err != nil {
		return fmt.Errorf("inode %v: bytes at %d: %w", f.object.File(), s.Pos, err)
	}
	return nil
}

// Cut removes the bytes behind size of the live file a, which has at most a.Size bytes.
func (d *Data) Cut(ctx context.Context, a *metadata.Attr, order []metadata.NodeID, size int64) error {
	type object struct {
		node metadata.NodeID
		size int64
	}
	var objects []object
	f := fileOn(a, order)
	for k, id := range f.first {
		had := datapath.ObjectSize(a.Layout.Chunk(), len(f.first), k, a.Size)
		keeps := datapath.ObjectSize(a.Layout.Chunk(), len(f.first), k, size)
		if keeps < had {
			objects = append(objects, object{id, keeps})
		}
	}
	return wait.Each(ctx, objects, func(ctx context.Context, o object) error {
		err := d.onAll(ctx, &f, o.node, func(ctx context.Context, at place, node datapath.Store) error {
			if o.size == 0 && !f.copied() {
				return node.Remove(ctx, at.object) // an empty object would outlive its file
			}
			// An empty copy is kept: its object replaces the old object of a node that returns (daemon/rebuild).
			return node.Truncate(ctx, at.object, o.size)
		})
		if err != nil {
			return fmt.Errorf("inode %v: cut to %d: %w", a.Ino, size, err)
		}
		return nil
	})
}

// Sync makes durable the bytes of the file a on the nodes. With copies, all copies that count must have them.
func (d *Data) Sync(ctx context.Context, a *metadata.Attr, order, nodes []metadata.NodeID) error {
	f := fileOn(a, order)
	if f.copied() {
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(id metadata.NodeID) bool { return !slices.Contains(f.first, id) })
	}
	return wait.Each(ctx, nodes, func(ctx context.Context, id metadata.NodeID) error {
		return d.onAll(ctx, &f, id, func(ctx context.Context, at place, node datapath.Store) error {
			return node.Sync(ctx, at.object)
		})
	})
}
