package fsclient

import (
	"context"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/metadata"
)

// Allocate ensures that writes to the n bytes at off do not fail for want of space, and makes the file at least off+n
// bytes long. After an error, such as ENOSPC, some of the space may be allocated.
func (f *File) Allocate(ctx context.Context, off, n int64) error {
	nodes, err := f.allocate(ctx, off, n)
	done := int(n)
	if err != nil {
		done = 0
	}
	f.wrote(nodes, done, off, err)
	return err
}

// Reserve is Allocate that keeps the file's length.
func (f *File) Reserve(ctx context.Context, off, n int64) error {
	nodes, err := f.allocate(ctx, off, n)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touch(nodes)
	f.failed = true // its size does not tell where it has objects
	f.reserved = max(f.reserved, off+n)
	return err
}

func (f *File) allocate(ctx context.Context, off, n int64) ([]metadata.NodeID, error) {
	return f.shape(ctx, off, n, func(ctx context.Context, d datapath.Store, p stripe.Part) error {
		return d.Allocate(ctx, p.Object, p.Off, p.N)
	})
}

// Punch makes the n bytes at off a hole. The file keeps its length.
func (f *File) Punch(ctx context.Context, off, n int64) error {
	nodes, err := f.shape(ctx, off, n, func(ctx context.Context, d datapath.Store, p stripe.Part) error {
		return d.Punch(ctx, p.Object, p.Off, p.N)
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touch(nodes)
	f.changed() // the home must learn the time of modification
	return err
}

func (f *File) shape(ctx context.Context, off, n int64, fn func(context.Context, datapath.Store, stripe.Part) error) ([]metadata.NodeID, error) {
	if f.ino.Sealed() {
		return nil, readOnly(f.ino)
	}
	if err := f.drain(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	a, order := f.attr, f.order
	f.mu.Unlock()
	return f.c.data.Shape(ctx, &a, order, off, n, fn)
}

// NextData returns the first offset from off on that has data; ENXIO if there is none before the end of the file.
func (f *File) NextData(ctx context.Context, off int64) (int64, error) {
	a, err := f.c.Getattr(ctx, f.ino)
	if err != nil {
		return 0, err
	}
	return f.c.data.NextData(ctx, &a, f.Order(), off)
}

// NextHole returns the first offset from off on that has no data; the end of the file is a hole. ENXIO if off is not
// before the end.
func (f *File) NextHole(ctx context.Context, off int64) (int64, error) {
	a, err := f.c.Getattr(ctx, f.ino)
	if err != nil {
		return 0, err
	}
	return f.c.data.NextHole(ctx, &a, f.Order(), off)
}

// Blocks returns the bytes on disk of a file with a local layout on this node. For other files it returns false: that
// would cost calls to other nodes.
func (c *Client) Blocks(ctx context.Context, a *metadata.Attr) (int64, bool) {
	if a.Layout.Kind != metadata.Local || c.cfg.LocalData == nil || a.Layout.Node != c.cfg.Self ||
		a.Mode&syscall.S_IFMT != syscall.S_IFREG || a.Size == 0 || a.Ino.Sealed() {
		return 0, false
	}
	n, err := c.cfg.LocalData.Allocated(ctx, a.Object())
	return n, err == nil
}
