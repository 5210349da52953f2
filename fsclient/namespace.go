package fsclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/fsclient/route"
	"github.com/bivouacfs/bivouac/metadata"
)

// Each change of the namespace is one call to the node that keeps the (source) entry. That node makes all changes on
// other nodes.

// at calls fn with the store that keeps the entry name of dir.
func at[T any](ctx context.Context, c *Client, dir metadata.Ino, name string, fn func(metadata.NodeStore) (T, error)) (T, error) {
	return route.At(ctx, c.nodes, dir, name, fn)
}

// Lookup implements metadata.Namespace. The entry always has its Attr, even if the inode's home is not the directory's
// home.
func (c *Client) Lookup(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	e, _, err := c.LookupLeased(ctx, dir, name)
	return e, err
}

// LostEntry returns the entry name of dir if its inode was lost with its home: only its type is known, and the name can
// be removed.
func (c *Client) LostEntry(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, bool) {
	if dir.Sealed() {
		return metadata.Entry{}, false
	}
	e, err := at(ctx, c, dir, name, func(s metadata.NodeStore) (metadata.Entry, error) { return s.Lookup(ctx, dir, name) })
	return e, err == nil && errors.Is(c.nodes.HomeAlive(e.Ino.Home()), syscall.EHOSTDOWN)
}

// Create implements metadata.Namespace. A regular file without a layout gets that of its directory, with the epoch of
// this node's map and with this node as writer.
func (c *Client) Create(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if dir.Sealed() {
		return metadata.Attr{}, readOnly(dir)
	}
	c.setNewLayout(&n)
	a, err := at(ctx, c, dir, name, func(s metadata.NodeStore) (metadata.Attr, error) { return s.Create(ctx, dir, name, n) })
	if err != nil {
		c.changedHere(err, attrKey(dir), entryKey(dir, name)) // the caller's view was out of date
		return a, err
	}
	c.entryChanged(dir, &a)
	return a, nil
}

// setNewLayout fills in the layout of a file that will be created.
func (c *Client) setNewLayout(n *metadata.New) {
	if t := n.Mode & syscall.S_IFMT; (t == 0 || t == syscall.S_IFREG) && n.Layout == (metadata.Layout{}) {
		n.Layout.Epoch, n.Layout.Node = c.nodes.Map().Epoch, c.writer()
	}
}

// ReadDir implements metadata.Namespace. The entries of a split directory are merged by name from all nodes at every
// call: to list a whole directory, use a Listing. An entry has no Attr if the directory is split, or if its inode's
// home is another node.
func (c *Client) ReadDir(ctx context.Context, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
	l := Listing{c: c, dir: dir, mode: listByName, attrs: true}
	es, end, err := l.from(ctx, after, limit)
	if err == nil && end && l.lost != nil {
		return nil, l.lost
	}
	return es, err
}

// Unlink implements metadata.Namespace.
func (c *Client) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	if dir.Sealed() {
		return metadata.Entry{}, readOnly(dir)
	}
	defer c.leases.Revoke(entryKey(dir, name))
	e, err := at(ctx, c, dir, name, func(s metadata.NodeStore) (metadata.Entry, error) { return s.Unlink(ctx, dir, name) })
	if err != nil {
		c.changedHere(err, attrKey(dir), entryKey(dir, name)) // the caller's view was out of date
		return metadata.Entry{}, err
	}
	c.changedHere(nil, attrKey(e.Ino))
	c.entryChanged(dir, e.Attr)
	return e, nil
}

// Mkdir implements metadata.Directories. The node that keeps the entry chooses the home of the new directory.
func (c *Client) Mkdir(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if dir.Sealed() {
		return metadata.Attr{}, readOnly(dir)
	}
	a, err := at(ctx, c, dir, name, func(s metadata.NodeStore) (metadata.Attr, error) { return s.Mkdir(ctx, dir, name, n) })
	c.changedHere(err, attrKey(dir), entryKey(dir, name))
	return a, err
}

// Rmdir implements metadata.Directories.
func (c *Client) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	if dir.Sealed() {
		return readOnly(dir)
	}
	_, err := at(ctx, c, dir, name, func(s metadata.NodeStore) (struct{}, error) { return struct{}{}, s.Rmdir(ctx, dir, name) })
	c.changedHere(err, attrKey(dir), entryKey(dir, name))
	return err
}

// Link implements metadata.Directories. It flushes the file first: a smaller size in the answer would make the kernel
// cut off pages that it has.
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
	a, err := at(ctx, c, dir, name, func(s metadata.NodeStore) (metadata.Attr, error) { return s.Link(ctx, ino, dir, name) })
	c.changedHere(err, attrKey(dir), attrKey(ino))
	return a, err
}

// Rename implements metadata.Namespace.
func (c *Client) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	if r.Dir.Sealed() || r.NewDir.Sealed() {
		return nil, readOnly(max(r.Dir, r.NewDir))
	}
	old, err := at(ctx, c, r.Dir, r.Name, func(s metadata.NodeStore) (*metadata.Entry, error) { return s.Rename(ctx, r) })
	c.changedHere(err, attrKey(r.Dir), entryKey(r.Dir, r.Name), attrKey(r.NewDir), entryKey(r.NewDir, r.NewName))
	if old != nil {
		c.changedHere(nil, attrKey(old.Ino))
	}
	return old, err
}

// Resolve follows path, slash-separated, from the directory root. It follows no
// symbolic link, so that no path leads out of the filesystem: a path through one is
// ELOOP.
func (c *Client) Resolve(ctx context.Context, root metadata.Ino, path string) (metadata.Ino, error) {
	ino := root
	for name := range strings.SplitSeq(path, "/") {
		switch name {
		case "", ".":
			continue
		case "..":
			return 0, fmt.Errorf("%s: %w", path, syscall.EINVAL)
		}
		e, err := c.Lookup(ctx, ino, name)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		if e.Mode&syscall.S_IFMT == syscall.S_IFLNK {
			return 0, fmt.Errorf("%s: %s is a symbolic link: %w", path, name, syscall.ELOOP)
		}
		ino = e.Ino
	}
	return ino, nil
}
