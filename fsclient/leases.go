package fsclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// What is kept of directories, for as long as their homes have promised to say
// when it changes. Of files nothing is kept.

// Revoke forgets what keys name, because another node has changed it, and has
// the mount do so.
func (c *Client) Revoke(keys []metadata.LeaseKey) {
	dirs := c.leases.Revoke(keys...)
	if f := c.forget.Load(); f != nil {
		(*f)(dirs)
	}
}

// OnRevoke has f called with the directories whose attributes must not be kept
// any longer. It must not wait for an operation of this client.
func (c *Client) OnRevoke(f func(dirs []metadata.Ino)) { c.forget.Store(&f) }

// LookupKept is Lookup that also says for how long the attributes may be kept:
// longer than not at all only if they had been asked for before.
func (c *Client) LookupKept(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, time.Duration, error) {
	if dir.Sealed() {
		e, err := c.lookupSealed(ctx, dir, name)
		return e, 0, err
	}
	e, ok := c.leases.Entry(dir, name)
	if !ok {
		e, err := c.lookupNow(ctx, dir, name)
		return e, 0, err
	}
	a, left, err := c.GetattrKept(ctx, e.Ino)
	if errors.Is(err, syscall.ENOENT) {
		c.leases.Revoke(metadata.LeaseKey{Ino: dir, Name: name})
		e, err := c.lookupNow(ctx, dir, name)
		return e, 0, err
	}
	if err != nil {
		return metadata.Entry{}, 0, err
	}
	e.Mode, e.Attr = a.Mode, &a
	return e, left, nil
}

// lookupNow asks the node that keeps the entry, and again if its inode is gone
// when it is asked for: then the name has been given to another one, or removed.
func (c *Client) lookupNow(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	for was := metadata.Ino(0); ; {
		e, err := c.lookupOnce(ctx, dir, name)
		switch {
		case err != nil:
			return metadata.Entry{}, err
		case e.Attr != nil:
			return e, nil
		case e.Ino == was:
			return metadata.Entry{}, fmt.Errorf("entry %q of %v, inode %v: %w", name, dir, e.Ino, syscall.ENOENT)
		}
		was = e.Ino
	}
}

// lookupOnce asks once. An entry whose inode was gone has no Attr.
func (c *Client) lookupOnce(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	f := c.leases.Fetch()
	defer f.End()
	var term metadata.Lease
	e, err := routed(ctx, c, func() (e metadata.Entry, err error) {
		s, err := c.at(ctx, dir, name)
		if err == nil {
			e, term, err = lookupLease(ctx, s, dir, name, c.cfg.Self)
		}
		return e, err
	})
	if err != nil {
		return metadata.Entry{}, err
	}
	if isDir(e.Mode) {
		f.Entry(dir, e, term.Entry)
		if e.Attr != nil {
			*e.Attr = f.Attr(*e.Attr, term.Attr)
		}
	}
	if e.Attr != nil && e.Attr.Nlink > 0 && c.files.get(e.Ino) == nil {
		return e, nil
	}
	a, err := c.Getattr(ctx, e.Ino)
	switch {
	case errors.Is(err, syscall.ENOENT), err == nil && a.Nlink == 0:
		e.Attr = nil
		return e, nil
	case err != nil:
		return metadata.Entry{}, err
	}
	e.Mode, e.Attr = a.Mode, &a
	return e, nil
}

func lookupLease(ctx context.Context, s metadata.NodeStore, dir metadata.Ino, name string, by metadata.NodeID) (metadata.Entry, metadata.Lease, error) {
	if l, ok := s.(metadata.Leaser); ok {
		return l.LookupLease(ctx, dir, name, by)
	}
	e, err := s.Lookup(ctx, dir, name)
	return e, metadata.Lease{}, err
}

// GetattrKept is Getattr that also says for how long the answer may be kept.
func (c *Client) GetattrKept(ctx context.Context, ino metadata.Ino) (metadata.Attr, time.Duration, error) {
	if !ino.Sealed() {
		if a, left := c.leases.Attr(ino); left > 0 {
			return a, left, nil
		}
	}
	a, err := c.getattr(ctx, ino)
	return a, 0, err
}

// Removed is the attributes of a directory that was there and is gone.
func (c *Client) Removed(ino metadata.Ino) (metadata.Attr, bool) { return c.leases.Removed(ino) }

// getattrLive asks the home of ino.
func (c *Client) getattrLive(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	s, err := c.homeOf(ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	l, ok := s.(metadata.Leaser)
	if !ok {
		return s.Getattr(ctx, ino)
	}
	f := c.leases.Fetch()
	defer f.End()
	a, term, err := l.GetattrLease(ctx, ino, c.cfg.Self)
	if err == nil && isDir(a.Mode) {
		a = f.Attr(a, term.Attr)
	}
	return a, err
}

// entered notes that this node has made or removed an entry of dir. At, the
// inode that it names, was changed by the same step; its time is dir's if their
// home is one. Without At nothing is known but that.
func (c *Client) entered(dir metadata.Ino, at *metadata.Attr) {
	if at == nil || at.Ino.Home() != dir.Home() {
		c.leases.Revoke(metadata.LeaseKey{Ino: dir})
		return
	}
	c.leases.Touch(dir, at.Ctime)
}

// rearranged notes that this node has changed which directory an entry of dir
// leads to, or may have.
func (c *Client) rearranged(dir metadata.Ino, name string) {
	c.leases.Revoke(metadata.LeaseKey{Ino: dir}, metadata.LeaseKey{Ino: dir, Name: name})
}

func isDir(mode uint32) bool { return mode&syscall.S_IFMT == syscall.S_IFDIR }
