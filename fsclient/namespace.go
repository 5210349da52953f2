package fsclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Lookup is metadata.Namespace. The entry always has its Attr, also if the
// inode's home is another node than the directory's.
func (c *Client) Lookup(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	if dir.Sealed() {
		return c.lookupSealed(ctx, dir, name)
	}
	s, err := c.homeOf(dir)
	if err != nil {
		return metadata.Entry{}, err
	}
	e, err := s.Lookup(ctx, dir, name)
	if err != nil {
		return metadata.Entry{}, err
	}
	if e.Attr != nil && c.files.get(e.Ino) == nil {
		return e, nil
	}
	a, err := c.Getattr(ctx, e.Ino)
	if errors.Is(err, syscall.ENOENT) {
		c.forgetName(ctx, dir, e)
		return metadata.Entry{}, fmt.Errorf("entry %q of %v: %w", name, dir, syscall.ENOENT)
	}
	if err != nil {
		return metadata.Entry{}, err
	}
	e.Mode, e.Attr = a.Mode, &a
	return e, nil
}

// forgetName removes an entry whose inode is gone. It is what is left when an
// operation on two nodes did not come to its end.
func (c *Client) forgetName(ctx context.Context, dir metadata.Ino, e metadata.Entry) {
	s, err := c.homeOf(dir)
	if err == nil {
		err = s.Remove(context.WithoutCancel(ctx), dir, e.Name, e.Ino)
	}
	switch {
	case err == nil:
		c.cfg.Log.WithField("inode", e.Ino.String()).WithField("dir", dir.String()).Info("entry of an inode that is gone was removed")
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ESTALE): // somebody else was faster
	default:
		c.cfg.Log.WithError(err).Debug("entry of an inode that is gone remains")
	}
}

func (c *Client) lookupSealed(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	t, err := c.sealed(dir)
	if err != nil {
		return metadata.Entry{}, err
	}
	c.stats.metaSealed.Add(1)
	e, err := t.Lookup(ctx, dir, name)
	if err != nil {
		return metadata.Entry{}, err
	}
	a := e.Attr
	if a == nil {
		got, err := t.Getattr(ctx, e.Ino)
		if err != nil {
			return metadata.Entry{}, err
		}
		a = &got
	}
	owned := c.own(*a)
	e.Attr = &owned
	return e, nil
}

// Create is metadata.Namespace. A regular file without a layout gets the
// default one, of the epoch of this node's map.
func (c *Client) Create(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if dir.Sealed() {
		return metadata.Attr{}, readOnly(dir)
	}
	s, err := c.homeOf(dir)
	if err != nil {
		return metadata.Attr{}, err
	}
	if t := n.Mode & syscall.S_IFMT; (t == 0 || t == syscall.S_IFREG) && n.Layout == (metadata.Layout{}) {
		n.Layout.Epoch = c.cfg.View().Map.Epoch
	}
	return s.Create(ctx, dir, name, n)
}

// ReadDir is metadata.Namespace. An entry has no Attr if its inode's home is
// another node than the directory's.
func (c *Client) ReadDir(ctx context.Context, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
	if !dir.Sealed() {
		s, err := c.homeOf(dir)
		if err != nil {
			return nil, err
		}
		return s.ReadDir(ctx, dir, after, limit)
	}
	t, err := c.sealed(dir)
	if err != nil {
		return nil, err
	}
	c.stats.metaSealed.Add(1)
	es, err := t.ReadDir(ctx, dir, after, limit)
	for i := range es {
		if es[i].Attr != nil {
			owned := c.own(*es[i].Attr)
			es[i].Attr = &owned
		}
	}
	return es, err
}

// Unlink is metadata.Namespace. The caller gives the entry to Discard.
func (c *Client) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	if dir.Sealed() {
		return metadata.Entry{}, readOnly(dir)
	}
	s, err := c.homeOf(dir)
	if err != nil {
		return metadata.Entry{}, err
	}
	e, err := s.Unlink(ctx, dir, name)
	if err != nil {
		return metadata.Entry{}, err
	}
	return c.unlinked(ctx, e), nil
}

// unlinked finishes an unlink, or a rename over e, after the name is gone: the
// link is taken off where the inode is. What fails here cannot be undone; it
// costs space, not data.
func (c *Client) unlinked(ctx context.Context, e metadata.Entry) metadata.Entry {
	if e.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return e
	}
	ctx = context.WithoutCancel(ctx)
	if e.Attr == nil {
		a, err := c.relink(ctx, e.Ino, -1)
		if err != nil {
			c.stats.unreaped.Add(1)
			c.cfg.Log.WithError(err).Warn("a link could not be taken off its inode")
			return e
		}
		e.Mode, e.Attr = a.Mode, &a
	}
	return e
}

// Discard removes the data and the inode of what Unlink or Rename has returned,
// if that was its last name: at once, or when the last one on this node closes
// it. What fails costs space only, and is logged.
func (c *Client) Discard(ctx context.Context, e metadata.Entry) {
	if e.Attr == nil || e.Attr.Nlink > 0 || e.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return
	}
	if !c.files.orphan(*e.Attr) {
		c.reclaim(context.WithoutCancel(ctx), *e.Attr)
	}
}

func (c *Client) relink(ctx context.Context, ino metadata.Ino, delta int) (metadata.Attr, error) {
	s, err := c.homeOf(ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	return s.Relink(ctx, ino, delta)
}

// reclaim removes the data of an orphan and then its inode. If a node does not
// do its part the orphan stays, for its home to know what is left.
func (c *Client) reclaim(ctx context.Context, a metadata.Attr) {
	var err error
	if a.Mode&syscall.S_IFMT == syscall.S_IFREG {
		err = c.cut(ctx, a, 0)
	}
	if err == nil {
		err = c.Reap(ctx, a.Ino)
	}
	if err != nil {
		c.stats.unreaped.Add(1)
		c.cfg.Log.WithError(err).Warn("data of a removed file remains")
		return
	}
	c.stats.reaped.Add(1)
}

// Link is metadata.Directories.
func (c *Client) Link(ctx context.Context, ino, dir metadata.Ino, name string) (metadata.Attr, error) {
	switch {
	case dir.Sealed():
		return metadata.Attr{}, readOnly(dir)
	case ino.Sealed():
		return metadata.Attr{}, fmt.Errorf("link of inode %v into scratch: %w", ino, syscall.EXDEV)
	}
	s, err := c.homeOf(dir)
	if err != nil {
		return metadata.Attr{}, err
	}
	if ino.Home() == dir.Home() {
		return s.Link(ctx, ino, dir, name)
	}
	a, err := c.relink(ctx, ino, 1)
	if err != nil {
		return metadata.Attr{}, err
	}
	ctx = context.WithoutCancel(ctx)
	_, err = s.Enter(ctx, dir, metadata.Entry{Name: name, Ino: ino, Mode: a.Mode}, false)
	if err == nil {
		return a, nil
	}
	if c.notThere(ctx, err, dir, name, ino) {
		c.tookBack("link", c.undoLink(ctx, ino))
	}
	return metadata.Attr{}, err
}

func (c *Client) undoLink(ctx context.Context, ino metadata.Ino) error {
	a, err := c.relink(ctx, ino, -1)
	if err == nil {
		c.Discard(ctx, metadata.Entry{Ino: ino, Mode: a.Mode, Attr: &a})
	}
	return err
}

// notThere reports whether an Enter of name that failed with err has surely
// not taken effect, so that what was done before can be taken back.
func (c *Client) notThere(ctx context.Context, err error, dir metadata.Ino, name string, ino metadata.Ino) bool {
	if !ambiguous(err) {
		return true
	}
	s, err := c.homeOf(dir)
	if err != nil {
		return false
	}
	e, err := s.Lookup(ctx, dir, name)
	if errors.Is(err, syscall.ENOENT) {
		return true
	}
	return err == nil && e.Ino != ino
}

// ambiguous reports whether a call that failed with err may have taken effect
// on the other node.
func ambiguous(err error) bool {
	for _, e := range []syscall.Errno{syscall.ETIMEDOUT, syscall.EINTR, syscall.ECONNRESET, syscall.EIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// tookBack logs what could not be taken back after an error.
func (c *Client) tookBack(what string, err error) {
	if err != nil {
		c.cfg.Log.WithError(err).WithField("operation", what).Warn("a step could not be taken back")
	}
}
