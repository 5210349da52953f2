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

// Write writes p at offset off of the live file a. It returns how many bytes from the
// start of p are written, all of them unless it fails, and the nodes that it wrote to.
func (d *Data) Write(ctx context.Context, a *metadata.Attr, order []metadata.NodeID, p []byte, off int64) (int, []metadata.NodeID, error) {
	if off < 0 {
		return 0, nil, fmt.Errorf("inode %v: write at %d: %w", a.Ino, off, syscall.EINVAL)
	}
	if off > math.MaxInt64-int64(len(p)) {
		return 0, nil, fmt.Errorf("inode %v: write at %d: %w", a.Ino, off, syscall.EFBIG)
	}
	pieces := make([]piece, 0, 2)
	var nodes []metadata.NodeID
	for _, s := range datapath.Spans(a.Layout.Chunk(), order, off, int64(len(p))) {
		pieces = append(pieces, piece{Span: s, done: new(bool)})
		if !slices.Contains(nodes, s.Node) {
			nodes = append(nodes, s.Node)
		}
	}
	d.writing.Add(1)
	defer d.writing.Add(-1)
	// A piece that fails does not stop those before it: what they write counts.
	err := wait.Each(ctx, pieces, func(_ context.Context, w piece) error {
		err := d.writeSpan(ctx, a.Ino, w.Span, p[w.Pos-off:][:w.Len])
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

func (d *Data) writeSpan(ctx context.Context, ino metadata.Ino, s datapath.Span, p []byte) error {
	node, err := d.cfg.Nodes.Data(s.Node)
	if err == nil {
		err = node.WriteAt(ctx, ino, p, s.Off)
	}
	if err != nil {
		return fmt.Errorf("inode %v: bytes at %d: %w", ino, s.Pos, err)
	}
	d.count(&d.writeLocal, &d.writeRemote, s.Node, len(p))
	return nil
}

// Cut removes what lies behind size of the live file a, which has at most a.Size
// bytes.
func (d *Data) Cut(ctx context.Context, a *metadata.Attr, order []metadata.NodeID, size int64) error {
	type object struct {
		node metadata.NodeID
		size int64
	}
	var objects []object
	for k, id := range order {
		had := datapath.ObjectSize(a.Layout.Chunk(), len(order), k, a.Size)
		keeps := datapath.ObjectSize(a.Layout.Chunk(), len(order), k, size)
		if keeps < had {
			objects = append(objects, object{id, keeps})
		}
	}
	return wait.Each(ctx, objects, func(ctx context.Context, o object) error {
		node, err := d.cfg.Nodes.Data(o.node)
		switch {
		case err != nil:
		case o.size == 0:
			err = node.Remove(ctx, a.Ino) // an empty object would outlive its file
		default:
			err = node.Truncate(ctx, a.Ino, o.size)
		}
		if err != nil {
			return fmt.Errorf("inode %v: cut to %d: %w", a.Ino, size, err)
		}
		return nil
	})
}

// Sync makes durable what the nodes have of a file.
func (d *Data) Sync(ctx context.Context, ino metadata.Ino, nodes []metadata.NodeID) error {
	return wait.Each(ctx, nodes, func(ctx context.Context, id metadata.NodeID) error {
		node, err := d.cfg.Nodes.Data(id)
		if err == nil {
			err = node.Sync(ctx, ino)
		}
		return err
	})
}
