package fsclient

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// resize cuts the data first and sets the size then: after a crash in between the
// file has its old length, and zeros from the new end on. f is nil if the file is not
// open here.
func (c *Client) resize(ctx context.Context, s metadata.NodeStore, f *File, ino metadata.Ino, ch metadata.Change) (metadata.Attr, error) {
	if ch.Size < 0 {
		return metadata.Attr{}, fmt.Errorf("inode %v: size %d: %w", ino, ch.Size, syscall.EINVAL)
	}
	if f != nil {
		if err := f.drain(ctx); err != nil {
			return metadata.Attr{}, err
		}
		if err := f.lockSize(ctx); err != nil {
			return metadata.Attr{}, err
		}
		defer f.sizeTurn.Unlock()
		if err := f.app.turn.Lock(ctx); err != nil {
			return metadata.Attr{}, err
		}
		defer f.app.turn.Unlock()
	}
	a, err := freezeAppends(ctx, c.holder(), s, f, ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	defer func() {
		if err != nil {
			thawAppends(context.WithoutCancel(ctx), c, s, ino) // by that the file gets a new version
		} else if f != nil {
			f.cutOff()
		}
	}()
	if a.Mode&syscall.S_IFMT == syscall.S_IFREG {
		gen := f.widen(&a)
		if err = cut(ctx, c, &a, ch.Size); err != nil {
			return metadata.Attr{}, err
		}
		defer func() {
			if f != nil && err == nil {
				f.settle(a, gen)
			}
		}()
	}
	a, err = s.Setattr(context.WithoutCancel(ctx), ino, ch)
	return a, err
}

// cut removes the data of the file a behind size.
func cut(ctx context.Context, c *Client, a *metadata.Attr, size int64) error {
	if size >= a.Size {
		return nil
	}
	order, err := c.nodes.Order(ctx, a.Ino, a.Layout)
	if err != nil {
		return err
	}
	return c.data.Cut(ctx, a, order, size)
}

// widen makes a.Size as large as the writes that the home does not know of. It
// returns the generation for settle; f may be nil.
func (f *File) widen(a *metadata.Attr) (gen uint64) {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	a.Size = max(a.Size, f.end, f.reserved)
	f.later = 0
	return f.gen
}

// freezeAppends makes the appends of all nodes wait until the size is set, and
// returns the attributes. f may be nil.
func freezeAppends(ctx context.Context, by metadata.Holder, s metadata.NodeStore, f *File, ino metadata.Ino) (metadata.Attr, error) {
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
	pl, err := o.Append(ctx, by, q)
	return pl.Attr, err
}

// thawAppends ends a freeze after which no size was set.
func thawAppends(ctx context.Context, c *Client, s metadata.NodeStore, ino metadata.Ino) {
	o, err := opensOf(s)
	if err == nil {
		_, err = o.Append(ctx, c.holder(), metadata.Append{Ino: ino, Thaw: true})
	}
	if err != nil {
		c.cfg.Log.WithError(err).WithField("inode", ino.String()).Debug("end of a failed truncate not delivered: appends wait for the home's time limit")
	}
}
