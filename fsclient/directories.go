package fsclient

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Each of these is one call to the node that keeps the (source) entry, which
// does all that concerns other nodes.

// Mkdir is metadata.Directories. The node that keeps the entry chooses where
// the new directory is homed.
func (c *Client) Mkdir(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if dir.Sealed() {
		return metadata.Attr{}, readOnly(dir)
	}
	defer c.rearranged(dir, name)
	return routed(ctx, c, func() (metadata.Attr, error) {
		s, err := c.at(ctx, dir, name)
		if err != nil {
			return metadata.Attr{}, err
		}
		return s.Mkdir(ctx, dir, name, n)
	})
}

// Rmdir is metadata.Directories.
func (c *Client) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	if dir.Sealed() {
		return readOnly(dir)
	}
	defer c.rearranged(dir, name)
	_, err := routed(ctx, c, func() (struct{}, error) {
		s, err := c.at(ctx, dir, name)
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, s.Rmdir(ctx, dir, name)
	})
	return err
}

// Link is metadata.Directories. What this node has written of the file is told to its
// home first, so that the size in the answer, which the kernel takes for its own, is
// not less: it would cut off what it has of the file behind that.
func (c *Client) Link(ctx context.Context, ino, dir metadata.Ino, name string) (metadata.Attr, error) {
	switch {
	case dir.Sealed():
		return metadata.Attr{}, readOnly(dir)
	case ino.Sealed():
		return metadata.Attr{}, fmt.Errorf("link of inode %v into scratch: %w", ino, syscall.EXDEV)
	}
	if err := c.flushOpen(ctx, ino); err != nil {
		return metadata.Attr{}, err
	}
	defer c.entered(dir, nil)
	return routed(ctx, c, func() (metadata.Attr, error) {
		s, err := c.at(ctx, dir, name)
		if err != nil {
			return metadata.Attr{}, err
		}
		return s.Link(ctx, ino, dir, name)
	})
}

// Rename is metadata.Namespace.
func (c *Client) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	if r.Dir.Sealed() || r.NewDir.Sealed() {
		return nil, readOnly(max(r.Dir, r.NewDir))
	}
	defer c.rearranged(r.Dir, r.Name)
	defer c.rearranged(r.NewDir, r.NewName)
	return routed(ctx, c, func() (*metadata.Entry, error) {
		s, err := c.at(ctx, r.Dir, r.Name)
		if err != nil {
			return nil, err
		}
		return s.Rename(ctx, r)
	})
}
