package fsclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Getattr implements metadata.Inodes. It first publishes this node's writes to the home of an open file.
func (c *Client) Getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	a, _, err := c.GetattrLeased(ctx, ino)
	return a, err
}

// Setattr implements metadata.Inodes. Bytes that a SetSize cuts off are removed.
func (c *Client) Setattr(ctx context.Context, ino metadata.Ino, ch metadata.Change) (metadata.Attr, error) {
	if ino.Sealed() {
		return metadata.Attr{}, readOnly(ino)
	}
	s, err := c.nodes.Home(ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	f := c.files.get(ino)
	if f != nil && ch.Set&metadata.SetSize == 0 {
		return f.change(ctx, s, ch)
	}
	var a metadata.Attr
	err = changing(c, ino, func() (metadata.Attr, error) {
		if ch.Set&metadata.SetSize != 0 {
			a, err = resize(ctx, c, s, f, ino, ch)
		} else {
			a, err = s.Setattr(ctx, ino, ch)
		}
		return a, err
	})
	if err == nil && isDir(a.Mode) {
		c.leases.See(a)
	}
	return a, err
}

// Truncate sets the size of a live file.
func (c *Client) Truncate(ctx context.Context, ino metadata.Ino, size int64) (metadata.Attr, error) {
	return c.Setattr(ctx, ino, metadata.Change{Set: metadata.SetSize, Size: size})
}

// Readlink implements metadata.Inodes.
func (c *Client) Readlink(ctx context.Context, ino metadata.Ino) (string, error) {
	if ino.Sealed() {
		return c.sealed.readlink(ctx, ino)
	}
	s, err := c.nodes.Home(ino)
	if err != nil {
		return "", err
	}
	return s.Readlink(ctx, ino)
}

// ReadFile is Read without options.
func (c *Client) ReadFile(ctx context.Context, a metadata.Attr, p []byte, off int64) (int, error) {
	return c.Read(ctx, a, p, off, ReadOpts{})
}

// Read fills p from offset off of the file that a describes, which need not be open. Fewer bytes than len(p) mean the
// end of the file, at a.Size; holes are zeros.
func (c *Client) Read(ctx context.Context, a metadata.Attr, p []byte, off int64, o ReadOpts) (int, error) {
	order, err := c.nodes.Order(ctx, a.Ino, a.Layout)
	if err != nil {
		return 0, err
	}
	return c.data.Read(ctx, &a, order, p, off, o)
}

// WriteFile writes p at offset off of a live file that is not open here, and reports the size to its home.
func (c *Client) WriteFile(ctx context.Context, a metadata.Attr, p []byte, off int64) error {
	if a.Ino.Sealed() {
		return readOnly(a.Ino)
	}
	order, err := c.nodes.Order(ctx, a.Ino, a.Layout)
	if err != nil {
		return err
	}
	if _, _, err := c.data.Write(ctx, &a, order, p, off); err != nil {
		return err
	}
	_, err = c.Setattr(ctx, a.Ino, metadata.Change{Set: metadata.GrowSize | metadata.MtimeNow, Size: off + int64(len(p))})
	return err
}

// Hosts returns the names of the nodes that hold the data of the file a, in the order of its stripe; "source" for a
// file that is read through from the source.
func (c *Client) Hosts(ctx context.Context, a metadata.Attr) ([]string, error) {
	return c.nodes.Hosts(ctx, a)
}

// stale turns ENOENT for an inode that the caller holds into ESTALE: the file
// existed and was removed.
func stale(err error) error {
	if errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("%w: %w", syscall.ESTALE, err)
	}
	return err
}
