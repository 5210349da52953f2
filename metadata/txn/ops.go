package txn

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

func isDir(mode uint32) bool { return mode&syscall.S_IFMT == syscall.S_IFDIR }

// localOnly reports whether the store has done the whole operation; EXDEV means that other homes are involved.
func localOnly(err error) bool { return !errors.Is(err, syscall.EXDEV) }

// Unlink implements metadata.Namespace.
func (c *Coordinator) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	gone, err := c.store.Unlink(ctx, dir, name)
	if localOnly(err) {
		return gone, err
	}
	err = c.run(ctx, func(ctx context.Context, a *attempt) error {
		e, err := c.store.Lookup(ctx, dir, name)
		if err != nil {
			return err
		}
		if isDir(e.Mode) {
			return named(dir, name, syscall.EISDIR)
		}
		v, err := a.take(ctx, dir, e, metadata.EditUnlink)
		gone = metadata.Entry{Name: name, Ino: e.Ino, Mode: e.Mode, Attr: v.Attr}
		return err
	})
	if err != nil {
		return metadata.Entry{}, err
	}
	return gone, nil
}

// Rmdir implements metadata.Directories.
func (c *Coordinator) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	err := c.store.Rmdir(ctx, dir, name)
	if localOnly(err) {
		return err
	}
	return c.run(ctx, func(ctx context.Context, a *attempt) error {
		e, err := c.store.Lookup(ctx, dir, name)
		if err != nil {
			return err
		}
		if !isDir(e.Mode) {
			return named(dir, name, syscall.ENOTDIR)
		}
		_, err = a.take(ctx, dir, e, metadata.EditDrop)
		return err
	})
}

// take removes the entry e of dir, and applies kind to its inode, unless the inode was lost with its home.
func (a *attempt) take(ctx context.Context, dir metadata.Ino, e metadata.Entry, kind metadata.EditKind) (metadata.Vote, error) {
	if _, err := a.part(ctx, a.c.cfg.Self, metadata.Edit{Kind: metadata.EditLeave, Dir: dir, Name: e.Name, Ino: e.Ino}); err != nil {
		return metadata.Vote{}, err
	}
	home := e.Ino.Home()
	v, err := a.part(ctx, home, metadata.Edit{Kind: kind, Ino: e.Ino})
	if errors.Is(err, syscall.EHOSTDOWN) && a.c.cfg.Down(home) {
		a.c.cfg.Log.WithField("inode", e.Ino.String()).WithField("home", home).Warn("removed an entry whose inode was lost with its home")
		return metadata.Vote{}, nil
	}
	if err != nil {
		return metadata.Vote{}, named(dir, e.Name, err)
	}
	return v, nil
}

// Link implements metadata.Directories.
func (c *Coordinator) Link(ctx context.Context, ino, dir metadata.Ino, name string) (metadata.Attr, error) {
	at, err := c.store.Link(ctx, ino, dir, name)
	if localOnly(err) {
		return at, err
	}
	err = c.run(ctx, func(ctx context.Context, a *attempt) (err error) {
		at, err = a.give(ctx, dir, name, ino.Home(), metadata.Edit{Kind: metadata.EditLink, Ino: ino})
		return err
	})
	return at, err
}

// errHere ends the attempts to create a directory at an unreachable home.
var errHere = errors.New("home unreachable: the directory is created here")

// Mkdir implements metadata.Directories. DirHome chooses the home of the new directory; if that home is unreachable, it
// is this node.
func (c *Coordinator) Mkdir(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	parent, err := c.store.Parent(ctx, dir, name)
	if err != nil {
		return metadata.Attr{}, err
	}
	home := c.cfg.DirHome(ctx, parent, name)
	if home == c.cfg.Self || c.cfg.Down(home) {
		return c.store.Mkdir(ctx, dir, name, n)
	}
	n.Layout = n.Layout.Under(parent.Layout)
	if parent.Mode&syscall.S_ISGID != 0 {
		n.Mode |= syscall.S_ISGID
		n.GID = parent.GID
	}
	edit := metadata.Edit{Kind: metadata.EditMake, ToDir: dir, ToName: name, New: &n}
	var at metadata.Attr
	err = c.run(ctx, func(ctx context.Context, a *attempt) (err error) {
		at, err = a.give(ctx, dir, name, home, edit)
		if errors.Is(err, syscall.EHOSTDOWN) || errors.Is(err, syscall.EHOSTUNREACH) {
			return errHere
		}
		return err
	})
	if errors.Is(err, errHere) {
		return c.store.Mkdir(ctx, dir, name, n) // another home only balances the load
	}
	if err != nil {
		return metadata.Attr{}, err
	}
	return at, nil
}

// give enters name in dir for an inode that home creates, or adds a link to, by edit.
func (a *attempt) give(ctx context.Context, dir metadata.Ino, name string, home metadata.NodeID, edit metadata.Edit) (metadata.Attr, error) {
	self := a.c.cfg.Self
	if _, err := a.part(ctx, self, metadata.Edit{Kind: metadata.EditKeep, Dir: dir, Name: name}); err != nil {
		return metadata.Attr{}, err
	}
	v, err := a.part(ctx, home, edit)
	if err != nil {
		return metadata.Attr{}, err
	}
	if v.Attr == nil {
		return metadata.Attr{}, fmt.Errorf("vote of home %d has no inode: %w", home, syscall.EPROTO)
	}
	enter := metadata.Edit{Kind: metadata.EditEnter, Dir: dir, Name: name, Ino: v.Attr.Ino, Mode: v.Attr.Mode}
	_, err = a.part(ctx, self, enter)
	return *v.Attr, err
}

// named adds directory and name to an error.
func named(dir metadata.Ino, name string, err error) error {
	return fmt.Errorf("%q in %v: %w", name, dir, err)
}
