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

// Part is the range of one node's object that holds bytes of a range of a file.
type Part struct {
	Node   metadata.NodeID // the node that has its first copy
	Object metadata.Ino
	Off, N int64
}

// parts returns where a range is; on each node it is contiguous.
func parts(a *metadata.Attr, order []metadata.NodeID, off, n int64) []Part {
	s := datapath.Stripe{Chunk: a.Layout.Chunk(), Width: len(order)}
	var ps []Part
	for k, id := range order {
		if from, to := s.ObjectOffset(k, off), s.ObjectOffset(k, off+n); from < to {
			ps = append(ps, Part{id, a.Object(), from, to - from})
		}
	}
	return ps
}

// Shape calls fn for each node's part of the n bytes at off, and returns the nodes.
func (d *Data) Shape(ctx context.Context, a *metadata.Attr, order []metadata.NodeID, off, n int64, fn func(context.Context, datapath.Store, Part) error) ([]metadata.NodeID, error) {
	switch {
	case off < 0 || n <= 0:
		return nil, fmt.Errorf("inode %v: %d bytes at %d: %w", a.Ino, n, off, syscall.EINVAL)
	case off > math.MaxInt64-n:
		return nil, fmt.Errorf("inode %v: %d bytes at %d: %w", a.Ino, n, off, syscall.EFBIG)
	}
	f := fileOn(a, order)
	ps := parts(a, f.first, off, n)
	nodes := make([]metadata.NodeID, len(ps))
	for i, p := range ps {
		nodes[i] = p.Node
	}
	return f.withSeconds(nodes), wait.Each(ctx, ps, func(ctx context.Context, p Part) error {
		err := d.onAll(ctx, &f, p.Node, func(ctx context.Context, at place, node datapath.Store) error {
			p.Object = at.object
			return fn(ctx, node, p)
		})
		if err != nil {
			return fmt.Errorf("inode %v: %d bytes at %d: %w", a.Ino, n, off, err)
		}
		return nil
	})
}

// holeUnit is the alignment of holes, as on a disk. Bytes that an object lacks up to the next multiple read as zeros
// anyway.
const holeUnit = 4096

// NextData returns the first offset from off on that has data; ENXIO if there is none before the end of the file.
func (d *Data) NextData(ctx context.Context, a *metadata.Attr, order []metadata.NodeID, off int64) (int64, error) {
	at, err := d.seek(ctx, a, order, off, func(_ int64, e datapath.Extent) int64 { return e.From })
	if err == nil && at >= a.Size {
		err = fmt.Errorf("inode %v: no data after offset %d: %w", a.Ino, off, syscall.ENXIO)
	}
	return at, err
}

// NextHole returns the first offset from off on that has no data; the end of the file is a hole. ENXIO if off is not
// before the end.
func (d *Data) NextHole(ctx context.Context, a *metadata.Attr, order []metadata.NodeID, off int64) (int64, error) {
	at, err := d.seek(ctx, a, order, off, func(from int64, e datapath.Extent) int64 {
		if e.From > from {
			return from
		}
		return (e.To + holeUnit - 1) / holeUnit * holeUnit
	})
	return min(at, a.Size), err
}

// seek returns the first offset of the file that pick finds in one of its objects. pick gets the offset in the object
// to begin at, and the first data from there.
func (d *Data) seek(ctx context.Context, a *metadata.Attr, order []metadata.NodeID, off int64, pick func(from int64, e datapath.Extent) int64) (int64, error) {
	switch {
	case off < 0 || off >= a.Size:
		return 0, fmt.Errorf("inode %v: seek at %d: %w", a.Ino, off, syscall.ENXIO)
	case a.Ino.Sealed(): // a dataset file has no holes
		return pick(off, datapath.Extent{From: off, To: a.Size}), nil
	}
	f := fileOn(a, order)
	s := datapath.Stripe{Chunk: a.Layout.Chunk(), Width: len(f.first)}
	found := make([]int64, len(f.first))
	objects := make([]int, len(f.first))
	for k := range objects {
		objects[k] = k
	}
	err := wait.Each(ctx, objects, func(ctx context.Context, k int) error {
		from := s.ObjectOffset(k, off)
		var e datapath.Extent
		err := d.onOne(ctx, &f, f.first[k], func(ctx context.Context, at place, node datapath.Store) (err error) {
			e, err = node.Data(ctx, at.object, from)
			return err
		})
		if err != nil {
			return fmt.Errorf("inode %v: seek at %d: %w", a.Ino, off, err)
		}
		found[k] = s.FileOffset(k, pick(from, e))
		return nil
	})
	if err != nil {
		return 0, err
	}
	return slices.Min(found), nil
}
