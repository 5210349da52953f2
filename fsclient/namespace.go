package fsclient

import (
	"context"
	"errors"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Lookup is metadata.Namespace. The entry always has its Attr, also if the
// inode's home is another node than the directory's.
func (c *Client) Lookup(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	e, _, err := c.LookupKept(ctx, dir, name)
	return e, err
}

// Lost is the entry name of dir, if that is there and its inode was lost with its home, so
// that nothing is known of it but of what kind it is. It is for who removes the name.
func (c *Client) Lost(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, bool) {
	if dir.Sealed() {
		return metadata.Entry{}, false
	}
	e, err := routed(ctx, c, func() (metadata.Entry, error) {
		s, err := c.at(ctx, dir, name)
		if err != nil {
			return metadata.Entry{}, err
		}
		return s.Lookup(ctx, dir, name)
	})
	return e, err == nil && errors.Is(c.alive(e.Ino.Home()), syscall.EHOSTDOWN)
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
	c.recent.put(&owned)
	return e, nil
}

// Create is metadata.Namespace. A regular file without a layout gets that of
// its directory, of the epoch of this node's map and with this node as writer.
func (c *Client) Create(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if dir.Sealed() {
		return metadata.Attr{}, readOnly(dir)
	}
	c.layOut(&n)
	a, err := routed(ctx, c, func() (metadata.Attr, error) {
		s, err := c.at(ctx, dir, name)
		if err != nil {
			return metadata.Attr{}, err
		}
		return s.Create(ctx, dir, name, n)
	})
	if err == nil {
		c.entered(dir, &a)
	}
	return a, err
}

// layOut fills in the layout of a file that is to be made.
func (c *Client) layOut(n *metadata.New) {
	if t := n.Mode & syscall.S_IFMT; (t == 0 || t == syscall.S_IFREG) && n.Layout == (metadata.Layout{}) {
		n.Layout.Epoch, n.Layout.Node = c.cfg.View().Map.Epoch, c.writer()
	}
}

// ReadDir is metadata.Namespace, but that the entries of a wide directory come
// by name from all nodes for every call: who lists one uses a Listing. An entry
// has no Attr if the directory is wide, or its inode's home is another node.
func (c *Client) ReadDir(ctx context.Context, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
	l := Listing{c: c, dir: dir, mode: listByName, attrs: true}
	es, end, err := l.from(ctx, after, limit)
	if err == nil && end && l.lost != nil {
		return nil, l.lost
	}
	return es, err
}

func (c *Client) readSealed(ctx context.Context, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
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

// Unlink is metadata.Namespace.
func (c *Client) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	if dir.Sealed() {
		return metadata.Entry{}, readOnly(dir)
	}
	e, err := routed(ctx, c, func() (metadata.Entry, error) {
		s, err := c.at(ctx, dir, name)
		if err != nil {
			return metadata.Entry{}, err
		}
		return s.Unlink(ctx, dir, name)
	})
	if err != nil {
		return metadata.Entry{}, err
	}
	c.entered(dir, e.Attr)
	return e, nil
}
