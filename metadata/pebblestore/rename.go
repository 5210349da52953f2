package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Rename implements metadata.Namespace. It returns EXDEV unless both directories and their entries are homed here. It
// also returns EXDEV for moving a directory to another parent: one node cannot rule out a loop.
func (s *Store) Rename(ctx context.Context, r metadata.Rename) (replaced *metadata.Entry, err error) {
	if err := s.checkRename(r); err != nil {
		return nil, err
	}
	err = s.retry(ctx, func() (err error) {
		replaced, err = s.rename1(r)
		return err
	})
	return replaced, err
}

// rename1 is one attempt of Rename.
func (s *Store) rename1(r metadata.Rename) (*metadata.Entry, error) {
	for {
		src, err := s.entry(r.Dir, r.Name)
		if err != nil {
			return nil, err
		}
		dst, err := s.entry(r.NewDir, r.NewName)
		if err != nil {
			return nil, err
		}
		replaced, again, err := s.renameLocked(r, src, dst)
		if !again {
			return replaced, err
		}
	}
}

// checkAllFree is checkFree for all names and inodes that a rename changes.
func (p *txLocks) checkAllFree(r metadata.Rename, src, dst entry) error {
	err := p.checkFree(r.Dir, r.Name)
	if err == nil {
		err = p.checkFree(src.ino, "")
	}
	if err == nil {
		err = p.checkFree(r.NewDir, r.NewName)
	}
	switch {
	case err != nil:
		return err
	case r.Flags == metadata.RenameExchange:
		return p.checkFree(dst.ino, "")
	}
	return p.checkFree(r.NewDir, "", dst.ino)
}

func (s *Store) checkRename(r metadata.Rename) error {
	if err := checkName(r.Name); err != nil {
		return err
	}
	if err := checkName(r.NewName); err != nil {
		return err
	}
	switch r.Flags {
	case 0, metadata.RenameNoReplace, metadata.RenameExchange:
	default:
		return fmt.Errorf("rename flags %#x: %w", uint32(r.Flags), syscall.EINVAL)
	}
	if err := s.checkReadable(r.Dir, r.Name); err != nil {
		return err
	}
	err := s.checkReadable(r.NewDir, r.NewName)
	if errors.Is(err, syscall.EREMOTE) {
		return fmt.Errorf("rename: %v: %w", err, syscall.EXDEV)
	}
	return err
}

// renameLocked returns again if the entries changed before the locks were taken.
func (s *Store) renameLocked(r metadata.Rename, src, dst entry) (replaced *metadata.Entry, again bool, err error) {
	defer s.locks.lock(r.Dir, r.NewDir, src.ino, dst.ino).unlock()
	if err := s.txLocks.checkAllFree(r, src, dst); err != nil {
		return nil, false, err
	}
	t := s.step()
	defer t.close()
	m := mover{step: t, r: r, src: src, dst: dst}
	if m.from, err = t.dirOf(r.Dir, r.Name); err != nil {
		return nil, false, err
	}
	if m.to, err = t.dirOf(r.NewDir, r.NewName); err != nil {
		return nil, false, err
	}
	if changed, err := m.changed(); changed || err != nil {
		return nil, changed, err
	}
	move, err := m.check()
	if err != nil || !move {
		return nil, false, err
	}
	if r.Flags == metadata.RenameExchange {
		err = m.exchange()
	} else {
		replaced, err = m.move()
	}
	if err == nil {
		t.put(m.from)
		if m.to != m.from {
			t.put(m.to)
		}
		err = t.commit()
	}
	if err != nil {
		return nil, false, err
	}
	return replaced, false, nil
}

// mover is one rename in progress.
type mover struct {
	*step
	r        metadata.Rename
	src, dst entry
	from, to *inode // the directories; one pointer if they are the same
}

func (m *mover) changed() (bool, error) {
	src, err := m.s.entry(m.r.Dir, m.r.Name)
	if err != nil {
		return false, err
	}
	dst, err := m.s.entry(m.r.NewDir, m.r.NewName)
	return src != m.src || dst != m.dst, err
}

// check reports whether the rename is allowed, and whether it changes anything.
func (m *mover) check() (move bool, err error) {
	r, src, dst := m.r, m.src, m.dst
	switch {
	case src.ino == 0:
		return false, named(r.Dir, r.Name, syscall.ENOENT)
	case r.Flags == metadata.RenameNoReplace && dst.ino != 0:
		return false, named(r.NewDir, r.NewName, syscall.EEXIST)
	case r.Flags == metadata.RenameExchange && dst.ino == 0:
		return false, named(r.NewDir, r.NewName, syscall.ENOENT)
	case src.ino == dst.ino:
		return false, nil // two names of one inode, or one name twice
	}
	if dst.ino != 0 && r.Flags != metadata.RenameExchange {
		if err := replaceable(dst.mode, src.mode); err != nil {
			return false, named(r.NewDir, r.NewName, err)
		}
	}
	err = m.local()
	return err == nil, err
}

// local returns EXDEV for a rename that concerns other nodes.
func (m *mover) local() error {
	moves := isDir(m.src.mode) || m.r.Flags == metadata.RenameExchange && isDir(m.dst.mode)
	switch {
	case m.r.Dir != m.r.NewDir && moves:
		return fmt.Errorf("move of a directory to %v: %w", m.r.NewDir, syscall.EXDEV)
	case !m.s.here(m.src.ino):
		return otherHome(m.src.ino)
	case m.dst.ino != 0 && !m.s.here(m.dst.ino):
		return otherHome(m.dst.ino)
	}
	return nil
}

// move enters src at its new place, and replaces dst if it exists.
func (m *mover) move() (replaced *metadata.Entry, err error) {
	if m.dst.ino != 0 {
		if replaced, err = m.replace(); err != nil {
			return nil, named(m.r.NewDir, m.r.NewName, err)
		}
	}
	m.leave(m.from, m.r.Name)
	m.enter(m.to, m.r.NewName, m.src)
	if isDir(m.src.mode) {
		m.from.Nlink--
		m.to.Nlink++
	}
	return replaced, m.moved(m.src.ino, m.r.NewDir, m.r.NewName)
}

// replace removes a link of the inode of dst.
func (m *mover) replace() (*metadata.Entry, error) {
	e := &metadata.Entry{Name: m.r.NewName, Ino: m.dst.ino, Mode: m.dst.mode}
	if isDir(m.dst.mode) {
		n, err := m.dropEntryDir(m.dst)
		if err != nil {
			return nil, err
		}
		m.to.Nlink--
		e.Attr = &n.Attr
		return e, nil
	}
	n, err := m.inode(m.dst.ino)
	if err != nil {
		return nil, err
	}
	m.unlink(n)
	e.Mode, e.Attr = n.Mode, &n.Attr
	return e, nil
}

func (m *mover) exchange() error {
	m.enter(m.from, m.r.Name, m.dst)
	m.enter(m.to, m.r.NewName, m.src)
	if isDir(m.src.mode) {
		m.from.Nlink--
		m.to.Nlink++
	}
	if isDir(m.dst.mode) {
		m.to.Nlink--
		m.from.Nlink++
	}
	if err := m.moved(m.src.ino, m.r.NewDir, m.r.NewName); err != nil {
		return err
	}
	return m.moved(m.dst.ino, m.r.Dir, m.r.Name)
}

// moved records the new name of an inode.
func (t *step) moved(ino, dir metadata.Ino, name string) error {
	n, err := t.inode(ino)
	if err != nil {
		return err
	}
	t.changed(n)
	if n.isDir() {
		n.parent, n.text = dir, name
	}
	t.put(n)
	return nil
}
