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
	a, _, err := c.GetattrKept(ctx, ino)
	return a, err
}

// getattr asks whoever knows.
func (c *Client) getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	if ino.Sealed() {
		t, err := c.sealed(ino)
		if err != nil {
			return metadata.Attr{}, err
		}
		if a := c.recent.get(ino); a != nil {
			return *a, nil
		}
		c.stats.metaSealed.Add(1)
		a, err := t.Getattr(ctx, ino)
		return c.own(a), err
	}
	if f := c.files.get(ino); f != nil {
		return f.refresh(ctx)
	}
	return c.getattrLive(ctx, ino)
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
	defer c.leases.Revoke(metadata.LeaseKey{Ino: ino})
	a, err := s.Setattr(ctx, ino, ch)
	if err == nil && isDir(a.Mode) {
		c.leases.See(a)
	}
	return a, err
}

// resize cuts the data first and sets the size then, so that a crash between
// them leaves zeros and never old bytes behind the end.
func (c *Client) resize(ctx context.Context, s metadata.NodeStore, f *File, ino metadata.Ino, ch metadata.Change) (metadata.Attr, error) {
	if ch.Size < 0 {
		return metadata.Attr{}, fmt.Errorf("inode %v: size %d: %w", ino, ch.Size, syscall.EINVAL)
	}
	if f != nil {
		if err := f.arrive(ctx); err != nil {
			return metadata.Attr{}, err
		}
		if err := f.take(ctx); err != nil {
			return metadata.Attr{}, err
		}
		defer f.give()
		if err := take(ctx, f.app.turn); err != nil {
			return metadata.Attr{}, err
		}
		defer func() { <-f.app.turn }()
	}
	a, err := c.freeze(ctx, s, f, ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	defer func() {
		if err != nil {
			c.thaw(context.WithoutCancel(ctx), s, ino)
		} else if f != nil {
			f.cutOff()
		}
	}()
	if a.Mode&syscall.S_IFMT == syscall.S_IFREG {
		gen := f.widen(&a)
		if err = c.cut(ctx, a, ch.Size); err != nil {
			return metadata.Attr{}, err
		}
		defer func() { f.settle(a, gen, err) }()
	}
	a, err = s.Setattr(context.WithoutCancel(ctx), ino, ch)
	return a, err
}

// thaw ends what freeze began, where no size was set.
func (c *Client) thaw(ctx context.Context, s metadata.NodeStore, ino metadata.Ino) {
	o, err := opensOf(s)
	if err == nil {
		_, err = o.Append(ctx, c.holder(), metadata.Append{Ino: ino, Thaw: true})
	}
	if err != nil {
		c.cfg.Log.WithError(err).Debug("appends to a file that was not cut wait for a while")
	}
}

// freeze has the appends of all nodes wait until the size is set, and returns
// the attributes. f may be nil.
func (c *Client) freeze(ctx context.Context, s metadata.NodeStore, f *File, ino metadata.Ino) (metadata.Attr, error) {
	o, err := opensOf(s)
	if err != nil {
		return metadata.Attr{}, err
	}
	q := metadata.Append{Ino: ino, Freeze: true}
	if f != nil {
		f.mu.Lock()
		q = f.app.Settlement(ino, f.written())
		q.Freeze = true
		f.mu.Unlock()
	}
	pl, err := o.Append(ctx, c.holder(), q)
	return pl.Attr, err
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

// Reap is metadata.Inodes. It leaves the data.
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
