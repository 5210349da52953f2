package fsclient

import (
	"context"
	"fmt"
	"math"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// part is the bytes of one node's object that a range of the file has there.
type part struct {
	node   metadata.NodeID
	off, n int64
}

// parts is where the range is; on each node it is in one piece.
func parts(a metadata.Attr, order []metadata.NodeID, off, n int64) []part {
	s := datapath.Stripe{Chunk: a.Layout.Chunk(), Width: len(order)}
	var ps []part
	for k, id := range order {
		if from, to := s.ObjectOffset(k, off), s.ObjectOffset(k, off+n); from < to {
			ps = append(ps, part{id, from, to - from})
		}
	}
	return ps
}

// Allocate sees to it that writes to the n bytes at off do not fail for want of
// space, and makes the file at least off+n bytes long. With an error, such as
// ENOSPC, some of the space may be taken.
func (f *File) Allocate(ctx context.Context, off, n int64) error {
	nodes, err := f.allocate(ctx, off, n)
	done := int(n)
	if err != nil {
		done = 0
	}
	if f.wrote(nodes, done, off, err) {
		_, _ = f.publish(ctx) // what fails here stays dirty, and Flush will say so
	}
	return err
}

// Reserve is Allocate that leaves the file's length.
func (f *File) Reserve(ctx context.Context, off, n int64) error {
	nodes, err := f.allocate(ctx, off, n)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touch(nodes)
	f.failed = true // its size does not tell where it has objects
	f.reach = max(f.reach, off+n)
	return err
}

func (f *File) allocate(ctx context.Context, off, n int64) ([]metadata.NodeID, error) {
	return f.shape(ctx, off, n, func(ctx context.Context, d datapath.Store, p part) error {
		return d.Allocate(ctx, f.ino, p.off, p.n)
	})
}

// Punch makes the n bytes at off a hole. The file's length stays.
func (f *File) Punch(ctx context.Context, off, n int64) error {
	nodes, err := f.shape(ctx, off, n, func(ctx context.Context, d datapath.Store, p part) error {
		return d.Punch(ctx, f.ino, p.off, p.n)
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touch(nodes)
	f.gen++
	if !f.dirty { // the time of modification is to be told
		f.dirty, f.told = true, f.c.cfg.Now()
	}
	return err
}

// touch notes that nodes have what is not durable; f.mu is held.
func (f *File) touch(nodes []metadata.NodeID) {
	if f.touched == nil {
		f.touched = make(map[metadata.NodeID]struct{})
	}
	for _, id := range nodes {
		f.touched[id] = struct{}{}
	}
}

// shape calls fn for each node's part of the range, and returns the nodes.
func (f *File) shape(ctx context.Context, off, n int64, fn func(context.Context, datapath.Store, part) error) ([]metadata.NodeID, error) {
	switch {
	case f.ino.Sealed():
		return nil, readOnly(f.ino)
	case off < 0 || n <= 0:
		return nil, fmt.Errorf("inode %v: %d bytes at %d: %w", f.ino, n, off, syscall.EINVAL)
	case off > math.MaxInt64-n:
		return nil, fmt.Errorf("inode %v: %d bytes at %d: %w", f.ino, n, off, syscall.EFBIG)
	}
	if err := f.arrive(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	a, order := f.attr, f.order
	f.mu.Unlock()
	ps := parts(a, order, off, n)
	nodes := make([]metadata.NodeID, len(ps))
	for i, p := range ps {
		nodes[i] = p.node
	}
	return nodes, each(ctx, ps, func(ctx context.Context, p part) error {
		d, err := f.c.dataOf(p.node)
		if err == nil {
			err = fn(ctx, d, p)
		}
		if err != nil {
			return fmt.Errorf("inode %v: %d bytes at %d: %w", f.ino, n, off, err)
		}
		return nil
	})
}

// NextData is the first place at or behind off that has data; ENXIO if there is
// none before the end of the file.
func (f *File) NextData(ctx context.Context, off int64) (int64, error) {
	at, size, err := f.seek(ctx, off, func(_ int64, e datapath.Extent) int64 { return e.From })
	if err == nil && at >= size {
		err = fmt.Errorf("inode %v: data behind %d: %w", f.ino, off, syscall.ENXIO)
	}
	return at, err
}

// holeUnit is what a hole begins at a multiple of, as on a disk. What an object
// lacks to that are zeros all the same.
const holeUnit = 4096

// NextHole is the first place at or behind off that has none; the end of the
// file is a hole. ENXIO if off is not before the end.
func (f *File) NextHole(ctx context.Context, off int64) (int64, error) {
	at, size, err := f.seek(ctx, off, func(from int64, e datapath.Extent) int64 {
		if e.From > from {
			return from
		}
		return (e.To + holeUnit - 1) / holeUnit * holeUnit
	})
	return min(at, size), err
}

// seek is the first place in the file that pick finds in one of its objects, and
// the size of the file. pick gets the offset from which on the object matters,
// and its first stretch of data from there.
func (f *File) seek(ctx context.Context, off int64, pick func(from int64, e datapath.Extent) int64) (at, size int64, err error) {
	a, err := f.c.Getattr(ctx, f.ino)
	switch {
	case err != nil:
		return 0, 0, err
	case off < 0 || off >= a.Size:
		return 0, 0, fmt.Errorf("inode %v: seek at %d: %w", f.ino, off, syscall.ENXIO)
	case f.ino.Sealed(): // has no holes
		return pick(off, datapath.Extent{From: off, To: a.Size}), a.Size, nil
	}
	order := f.Order()
	s := datapath.Stripe{Chunk: a.Layout.Chunk(), Width: len(order)}
	found := make([]int64, len(order))
	places := make([]int, len(order))
	for k := range places {
		places[k] = k
	}
	err = each(ctx, places, func(ctx context.Context, k int) error {
		from := s.ObjectOffset(k, off)
		e, err := f.extent(ctx, order[k], from)
		if err != nil {
			return fmt.Errorf("inode %v: seek at %d: %w", f.ino, off, err)
		}
		found[k] = s.FileOffset(k, pick(from, e))
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	return slices.Min(found), a.Size, nil
}

func (f *File) extent(ctx context.Context, id metadata.NodeID, off int64) (datapath.Extent, error) {
	d, err := f.c.dataOf(id)
	if err != nil {
		return datapath.Extent{}, err
	}
	return d.Data(ctx, f.ino, off)
}

// Blocks is the space that a file takes, in bytes, where this node knows it
// without asking: that of a local layout here. For others it is false.
func (c *Client) Blocks(ctx context.Context, a *metadata.Attr) (int64, bool) {
	if a.Layout.Kind != metadata.Local || c.cfg.LocalData == nil || a.Layout.Node != c.cfg.Self ||
		a.Mode&syscall.S_IFMT != syscall.S_IFREG || a.Size == 0 || a.Ino.Sealed() {
		return 0, false
	}
	n, err := c.cfg.LocalData.Allocated(ctx, a.Ino)
	return n, err == nil
}
