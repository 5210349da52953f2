package fsclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Rename is metadata.Namespace. RENAME_EXCHANGE of entries whose directories
// have different homes is EINVAL. The caller gives what was replaced to Discard.
func (c *Client) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	if r.Dir.Sealed() || r.NewDir.Sealed() {
		return nil, readOnly(max(r.Dir, r.NewDir))
	}
	var replaced *metadata.Entry
	var err error
	if r.Dir.Home() == r.NewDir.Home() {
		replaced, err = c.renameHere(ctx, r)
	} else {
		replaced, err = c.renameAcross(ctx, r)
	}
	if err != nil || replaced == nil {
		return nil, err
	}
	e := c.unlinked(ctx, *replaced)
	return &e, nil
}

// renameHere renames between directories of one home. What that cannot do by
// itself is to replace a directory of another home: it is dropped before.
func (c *Client) renameHere(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	s, err := c.homeOf(r.Dir)
	if err != nil {
		return nil, err
	}
	replaced, err := s.Rename(ctx, r)
	if !errors.Is(err, syscall.EXDEV) {
		return replaced, err
	}
	old, err := s.Lookup(ctx, r.NewDir, r.NewName)
	if err != nil {
		return nil, err
	}
	if _, err := c.dropDir(ctx, old); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	if err := s.Remove(ctx, r.NewDir, r.NewName, old.Ino); err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ESTALE) {
		return nil, err
	}
	replaced, err = s.Rename(ctx, r)
	if err == nil && replaced == nil {
		replaced = &metadata.Entry{Name: r.NewName, Ino: old.Ino, Mode: old.Mode}
	}
	return replaced, err
}

// renameAcross renames between directories of two homes.
func (c *Client) renameAcross(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	if r.Flags&^metadata.RenameNoReplace != 0 {
		return nil, fmt.Errorf("rename flags %#x between nodes: %w", uint32(r.Flags), syscall.EINVAL)
	}
	from, err := c.homeOf(r.Dir)
	if err != nil {
		return nil, err
	}
	to, err := c.homeOf(r.NewDir)
	if err != nil {
		return nil, err
	}
	src, err := from.Lookup(ctx, r.Dir, r.Name)
	if err != nil {
		return nil, err
	}
	m := crossing{c: c, r: r, from: from, to: to, src: src}
	if src.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return m.directory(ctx)
	}
	return m.file(ctx)
}

// crossing is a rename between two homes under way.
type crossing struct {
	c        *Client
	r        metadata.Rename
	from, to metadata.NodeStore
	src      metadata.Entry
}

// file moves a file as a link and an unlink, so that its links are right, or
// one too many, at any moment.
func (m *crossing) file(ctx context.Context) (*metadata.Entry, error) {
	a, err := m.c.relink(ctx, m.src.Ino, 1)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	if a.Nlink > 2 { // it has other names, and the new one may be among them
		if old, err := m.to.Lookup(ctx, m.r.NewDir, m.r.NewName); err == nil && old.Ino == m.src.Ino {
			return nil, errors.Join(m.sameName(), m.c.undoLink(ctx, m.src.Ino))
		}
	}
	replaced, err := m.enter(ctx)
	if err != nil {
		if m.c.notThere(ctx, err, m.r.NewDir, m.r.NewName, m.src.Ino) {
			m.c.tookBack("rename", m.c.undoLink(ctx, m.src.Ino))
		}
		return nil, err
	}
	moved, err := m.remove(ctx, replaced)
	if moved {
		m.c.tookBack("rename", m.c.undoLink(ctx, m.src.Ino))
	}
	return replaced, err
}

// sameName is the answer to a rename of one name of an inode to another.
func (m *crossing) sameName() error {
	if m.r.Flags&metadata.RenameNoReplace != 0 {
		return fmt.Errorf("entry %q of %v: %w", m.r.NewName, m.r.NewDir, syscall.EEXIST)
	}
	return nil
}

// directory moves a directory. One that is replaced is dropped first.
func (m *crossing) directory(ctx context.Context) (*metadata.Entry, error) {
	old, err := m.to.Lookup(ctx, m.r.NewDir, m.r.NewName)
	switch {
	case errors.Is(err, syscall.ENOENT):
	case err != nil:
		return nil, err
	case m.r.Flags&metadata.RenameNoReplace != 0:
		return nil, fmt.Errorf("entry %q of %v: %w", m.r.NewName, m.r.NewDir, syscall.EEXIST)
	case old.Ino == m.src.Ino:
		return nil, nil
	default:
		if _, err := m.c.dropDir(ctx, old); err != nil {
			return nil, err
		}
	}
	ctx = context.WithoutCancel(ctx)
	replaced, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	_, err = m.remove(ctx, replaced)
	return replaced, err
}

func (m *crossing) enter(ctx context.Context) (*metadata.Entry, error) {
	e := metadata.Entry{Name: m.r.NewName, Ino: m.src.Ino, Mode: m.src.Mode}
	return m.to.Enter(ctx, m.r.NewDir, e, m.r.Flags&metadata.RenameNoReplace == 0)
}

// remove takes the old name away after the new one is there. If it is gone
// already, because somebody else has moved or unlinked it, the new name is
// taken back and the error is ENOENT; one is true then, because a name less
// is there all the same. With another error both names are there.
func (m *crossing) remove(ctx context.Context, replaced *metadata.Entry) (one bool, err error) {
	err = m.from.Remove(ctx, m.r.Dir, m.r.Name, m.src.Ino)
	if err == nil {
		return true, nil
	}
	if replaced != nil {
		m.c.Discard(ctx, m.c.unlinked(ctx, *replaced))
	}
	if !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ESTALE) {
		return false, err
	}
	if terr := m.to.Remove(ctx, m.r.NewDir, m.r.NewName, m.src.Ino); terr != nil {
		m.c.tookBack("rename", terr)
		return false, err
	}
	return true, fmt.Errorf("entry %q of %v: %w", m.r.Name, m.r.Dir, syscall.ENOENT)
}
