package fsclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Getattr is metadata.Inodes. What this node has written of an open file is
// told to its home first, so that the answer is true.
func (c *Client) Getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	if ino.Sealed() {
		t, err := c.sealed(ino)
		if err != nil {
			return metadata.Attr{}, err
		}
		c.stats.metaSealed.Add(1)
		a, err := t.Getattr(ctx, ino)
		return c.own(a), err
	}
	if f := c.files.get(ino); f != nil {
		return f.refresh(ctx)
	}
	s, err := c.homeOf(ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	return s.Getattr(ctx, ino)
}

// Setattr is metadata.Inodes. Bytes that a SetSize cuts off are removed.
func (c *Client) Setattr(ctx context.Context, ino metadata.Ino, ch metadata.Change) (metadata.Attr, error) {
	if ino.Sealed() {
		return metadata.Attr{}, readOnly(ino)
	}
	s, err := c.homeOf(ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	f := c.files.get(ino)
	switch {
	case ch.Set&metadata.SetSize != 0:
		return c.resize(ctx, s, f, ino, ch)
	case f != nil:
		return f.change(ctx, s, ch)
	}
	return s.Setattr(ctx, ino, ch)
}

// resize cuts the data first and sets the size then, so that a crash between
// them leaves zeros and never old bytes behind the end.
func (c *Client) resize(ctx context.Context, s metadata.NodeStore, f *File, ino metadata.Ino, ch metadata.Change) (metadata.Attr, error) {
	if ch.Size < 0 {
		return metadata.Attr{}, fmt.Errorf("inode %v: size %d: %w", ino, ch.Size, syscall.EINVAL)
	}
	if f != nil {
		if err := f.take(ctx); err != nil {
			return metadata.Attr{}, err
		}
		defer f.give()
	}
	a, err := s.Getattr(ctx, ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	if a.Mode&syscall.S_IFMT == syscall.S_IFREG {
		gen := f.widen(&a)
		if err := c.cut(ctx, a, ch.Size); err != nil {
			return metadata.Attr{}, err
		}
		defer func() { f.settle(a, gen, err) }()
	}
	a, err = s.Setattr(context.WithoutCancel(ctx), ino, ch)
	return a, err
}

// Readlink is metadata.Inodes.
func (c *Client) Readlink(ctx context.Context, ino metadata.Ino) (string, error) {
	if ino.Sealed() {
		t, err := c.sealed(ino)
		if err != nil {
			return "", err
		}
		c.stats.metaSealed.Add(1)
		return t.Readlink(ctx, ino)
	}
	s, err := c.homeOf(ino)
	if err != nil {
		return "", err
	}
	return s.Readlink(ctx, ino)
}

// Reap is metadata.Inodes. It leaves the data; Discard does both.
func (c *Client) Reap(ctx context.Context, ino metadata.Ino) error {
	if ino.Sealed() {
		return readOnly(ino)
	}
	s, err := c.homeOf(ino)
	if err != nil {
		return err
	}
	return s.Reap(ctx, ino)
}

// stale turns ENOENT for an inode that somebody holds into ESTALE: the file
// was there and is gone.
func stale(err error) error {
	if errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("%w: %w", syscall.ESTALE, err)
	}
	return err
}
