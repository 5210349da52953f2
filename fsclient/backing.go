package fsclient

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// Backing opens the object on this node's disk that holds all of a dataset file, byte for byte, so that the kernel can
// read it. It returns nil if there is no such object: the file is live, empty, on another node, or striped. The caller
// closes it.
func (f *File) Backing() (*os.File, error) {
	if !f.ino.Sealed() {
		return nil, nil
	}
	f.mu.Lock()
	size, order := f.attr.Size, f.order
	f.mu.Unlock()
	return f.c.backing(f.ino, size, order)
}

// mayHave reports whether this node owns a whole dataset file, or has a replica.
func (c *Client) mayHave(ino metadata.Ino, order []metadata.NodeID) bool {
	if len(order) != 1 || order[0] == c.cfg.Self || c.cfg.Replicas == nil {
		return len(order) == 1 && order[0] == c.cfg.Self
	}
	var buf [8]metadata.NodeID
	return slices.Contains(c.cfg.Replicas(buf[:0], ino, 0, order[0]), c.cfg.Self)
}

// whole is a store with links to whole objects, for kernel views.
type whole interface {
	LinkWhole(ctx context.Context, ino metadata.Ino, f *os.File) error
	Linked(ino metadata.Ino) bool
	Unlink(ino metadata.Ino) error
}

// LinkIfWhole links the object that holds all of a dataset file, byte for byte, if this node has one (here), so that a
// kernel view finds it. An existing link stays.
func (c *Client) LinkIfWhole(ctx context.Context, a *metadata.Attr) (here bool, err error) {
	store, order, err := linkable(ctx, c, a)
	if store == nil || err != nil {
		return false, err
	}
	if store.Linked(a.Ino) {
		return true, nil
	}
	return linkHere(ctx, c, store, a, order)
}

// RelinkWhole is c.LinkIfWhole for an object that may have changed or been removed: if the file is not whole here, its
// link is removed. mine reports that this node owns the file as one object.
func RelinkWhole(ctx context.Context, c *Client, a *metadata.Attr) (mine, here bool, err error) {
	store, order, err := linkable(ctx, c, a)
	if store == nil || err != nil {
		return false, false, err
	}
	if here, err = linkHere(ctx, c, store, a, order); !here {
		err = errors.Join(err, store.Unlink(a.Ino))
	}
	return order[0] == c.cfg.Self, here, err
}

// linkable returns the store that may have the whole file, and the file's nodes; nil if it cannot be whole here.
func linkable(ctx context.Context, c *Client, a *metadata.Attr) (whole, []metadata.NodeID, error) {
	store, ok := c.cfg.LocalData.(whole)
	if !ok || !a.Ino.Sealed() || a.Size == 0 || a.Layout.Kind == metadata.Overflow {
		return nil, nil, nil
	}
	order, err := c.nodes.Order(ctx, a.Ino, a.Layout)
	if err != nil || !c.mayHave(a.Ino, order) {
		return nil, nil, err
	}
	return store, order, nil
}

func linkHere(ctx context.Context, c *Client, store whole, a *metadata.Attr, order []metadata.NodeID) (here bool, err error) {
	o, err := c.backing(a.Ino, a.Size, order)
	if err != nil || o == nil {
		return false, err
	}
	defer o.Close() // nothing was read
	if err := store.LinkWhole(ctx, a.Ino, o); err != nil {
		return true, err
	}
	again, err := c.backing(a.Ino, a.Size, order)
	if err != nil || again == nil { // it was found damaged in between
		return false, errors.Join(err, store.Unlink(a.Ino))
	}
	_ = again.Close() // nothing was read
	return true, nil
}

// backing opens the object that holds all of a dataset file, or returns nil if there is none.
func (c *Client) backing(ino metadata.Ino, size int64, order []metadata.NodeID) (*os.File, error) {
	opener, ok := c.cfg.LocalData.(datapath.Opener)
	if !ok || size == 0 || !c.mayHave(ino, order) {
		return nil, nil
	}
	o, err := opener.Open(ino)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	st, err := o.Stat()
	if err == nil && st.Size() == size {
		return o, nil
	}
	_ = o.Close() // nothing was read
	if err != nil {
		return nil, fmt.Errorf("object %v: %w", ino, err)
	}
	return nil, nil
}

// Advise makes the kernel read a dataset file ahead, if it is whole on this node.
func (c *Client) Advise(ctx context.Context, a *metadata.Attr) {
	order, err := c.nodes.Order(ctx, a.Ino, a.Layout)
	if err != nil {
		return
	}
	o, err := c.backing(a.Ino, a.Size, order)
	if o == nil || err != nil {
		return // the read reports the error
	}
	_ = unix.Fadvise(int(o.Fd()), 0, a.Size, unix.FADV_WILLNEED) // only a hint
	_ = o.Close()                                                // nothing was read
}
