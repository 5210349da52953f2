package fsclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Names and attributes are cached for as long as their homes have leased them.

// Revoke drops cached attributes and entries, because another node is changing them,
// here and in the kernel.
func (c *Client) Revoke(keys []metadata.LeaseKey) {
	inos := c.leases.Revoke(keys...)
	if f := c.onRevoke.Load(); f != nil {
		(*f)(inos)
	}
}

// OnRevoke calls f with inodes whose attributes must not be cached any longer. f
// must not wait for an operation of this client.
func (c *Client) OnRevoke(f func(inos []metadata.Ino)) { c.onRevoke.Store(&f) }

// changedHere drops what is cached of ino, which this node has changed, or may have. Its home
// recalls leases from other nodes only.
func (c *Client) changedHere(ino metadata.Ino) { c.leases.Revoke(metadata.LeaseKey{Ino: ino}) }

// LookupLeased is Lookup that also returns for how long the attributes are leased: 0
// unless they had been asked for before.
func (c *Client) LookupLeased(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, time.Duration, error) {
	if dir.Sealed() {
		e, err := c.sealed.lookup(ctx, dir, name)
		return e, 0, err
	}
	e, ok := c.leases.Entry(dir, name)
	if !ok {
		e, err := c.lookupNow(ctx, dir, name)
		return e, 0, err
	}
	a, left, err := c.GetattrLeased(ctx, e.Ino)
	if errors.Is(err, syscall.ENOENT) || err == nil && a.Nlink == 0 {
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

// lookupNow asks the node that keeps the entry, and again if the inode is gone by the
// time it is asked for: the name was given to another inode, or removed.
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

// lookupOnce asks once. An entry whose inode is gone has no Attr.
func (c *Client) lookupOnce(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	f := c.leases.Fetch()
	defer f.End()
	var term metadata.Lease
	e, err := at(ctx, c, dir, name, func(s metadata.NodeStore) (e metadata.Entry, err error) {
		e, term, err = lookupLease(ctx, s, dir, name, c.cfg.Self)
		return e, err
	})
	if err != nil {
		return metadata.Entry{}, err
	}
	f.Entry(dir, e, term.Entry)
	if e.Attr != nil {
		*e.Attr = f.Attr(*e.Attr, term.Attr)
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

// GetattrLeased is Getattr that also returns for how long the answer is leased.
func (c *Client) GetattrLeased(ctx context.Context, ino metadata.Ino) (metadata.Attr, time.Duration, error) {
	if ino.Sealed() {
		a, err := c.sealed.getattr(ctx, ino)
		return a, 0, err
	}
	if f := c.files.get(ino); f != nil { // this node may have written what its home does not know
		a, err := f.refresh(ctx)
		if err != nil {
			return a, 0, err
		}
		leased, left := c.leases.Attr(ino)
		if a.Ctime != leased.Ctime || a.Size != leased.Size {
			left = 0
		}
		return a, left, nil
	}
	if a, left := c.leases.Attr(ino); left > 0 {
		return a, left, nil
	}
	a, err := c.getattrLive(ctx, ino)
	return a, 0, err
}

// Removed is the last attributes of a directory that was removed.
func (c *Client) Removed(ino metadata.Ino) (metadata.Attr, bool) { return c.leases.Removed(ino) }

// getattrLive asks the home of ino.
func (c *Client) getattrLive(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	s, err := c.nodes.Home(ino)
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
	if err == nil {
		a = f.Attr(a, term.Attr)
	}
	return a, err
}

// entryChanged notes that this node has made or removed an entry of dir that names no
// directory. at is the inode, changed by the same transaction: its st_ctime is that of
// dir if they have one home. at may be nil.
func (c *Client) entryChanged(dir metadata.Ino, at *metadata.Attr) {
	if at == nil || at.Ino.Home() != dir.Home() {
		c.leases.Revoke(metadata.LeaseKey{Ino: dir})
		return
	}
	c.leases.Touch(dir, at.Ctime)
}

// subdirChanged notes that this node has changed which directory an entry of dir
// names, or may have.
func (c *Client) subdirChanged(dir metadata.Ino, name string) {
	c.leases.Revoke(metadata.LeaseKey{Ino: dir}, metadata.LeaseKey{Ino: dir, Name: name})
}

func isDir(mode uint32) bool { return mode&syscall.S_IFMT == syscall.S_IFDIR }
