package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Rename is metadata.Namespace. Both directories must be homed here, and so
// must a directory that is replaced: otherwise it is EXDEV, and the client
// does it by halves. What moves may be homed anywhere.
func (s *Store) Rename(_ context.Context, r metadata.Rename) (*metadata.Entry, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	if err := s.checkRename(r); err != nil {
		return nil, err
	}
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
	for _, dir := range []metadata.Ino{r.Dir, r.NewDir} {
		if !s.here(dir) {
			return fmt.Errorf("rename: directory %v is on node %d: %w", dir, dir.Home(), syscall.EXDEV)
		}
	}
	return nil
}

// renameLocked asks for another round if the entries are not what was seen
// before the locks were taken.
func (s *Store) renameLocked(r metadata.Rename, src, dst entry) (replaced *metadata.Entry, again bool, err error) {
	if r.Dir != r.NewDir && (isDir(src.mode) || isDir(dst.mode)) {
		s.moveMu.Lock()
		defer s.moveMu.Unlock()
	}
	defer s.locks.lock(r.Dir, r.NewDir, src.ino, dst.ino).unlock()
	t := s.step()
	defer t.close()
	m := mover{step: t, r: r, src: src, dst: dst}
	if m.from, err = t.dir(r.Dir); err != nil {
		return nil, false, err
	}
	if m.to, err = t.dir(r.NewDir); err != nil {
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

// mover is one rename under way.
type mover struct {
	*step
	r        metadata.Rename
	src, dst entry
	from, to *inode // the directories; the same if they are
}

func (m *mover) changed() (bool, error) {
	src, err := m.s.entry(m.r.Dir, m.r.Name)
	if err != nil {
		return false, err
	}
	dst, err := m.s.entry(m.r.NewDir, m.r.NewName)
	return src != m.src || dst != m.dst, err
}

// check says whether the rename is allowed, and whether there is anything to do.
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
	case r.Flags != metadata.RenameExchange && dst.ino != 0 && isDir(dst.mode) && !isDir(src.mode):
		return false, named(r.NewDir, r.NewName, syscall.EISDIR)
	case r.Flags != metadata.RenameExchange && dst.ino != 0 && !isDir(dst.mode) && isDir(src.mode):
		return false, named(r.NewDir, r.NewName, syscall.ENOTDIR)
	}
	if isDir(src.mode) {
		err = m.s.checkLoop(src.ino, r.NewDir)
	}
	if err == nil && r.Flags == metadata.RenameExchange && isDir(dst.mode) {
		err = m.s.checkLoop(dst.ino, r.Dir)
	}
	return err == nil, err
}

// checkLoop is EINVAL if moving the directory ino to into dir would put it
// below itself. It follows the hints of directories homed here, each of which
// it checks; what is above a directory homed elsewhere only the client knows.
func (s *Store) checkLoop(ino, dir metadata.Ino) error {
	for range 1 << 16 {
		if dir == ino {
			return fmt.Errorf("move of directory %v below itself: %w", ino, syscall.EINVAL)
		}
		n, err := s.inode(dir)
		if errors.Is(err, syscall.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		if n.parent == 0 || !s.here(n.parent) {
			return nil
		}
		e, err := s.entry(n.parent, n.text)
		if err != nil || e.ino != dir {
			return err
		}
		dir = n.parent
	}
	return fmt.Errorf("tree above directory %v: %w", dir, syscall.ELOOP)
}

// move enters src in its new place, over dst if there is one.
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

// replace takes the links of what dst names.
func (m *mover) replace() (*metadata.Entry, error) {
	e := &metadata.Entry{Name: m.r.NewName, Ino: m.dst.ino, Mode: m.dst.mode}
	if isDir(m.dst.mode) {
		n, err := m.dropEntryDir(m.dst)
		if err != nil {
			return nil, err
		}
		m.to.Nlink--
		if n != nil {
			e.Attr = &n.Attr
		}
		return e, nil
	}
	if m.s.here(m.dst.ino) {
		n, err := m.inode(m.dst.ino)
		if err != nil {
			return nil, err
		}
		m.unlink(n)
		e.Mode, e.Attr = n.Mode, &n.Attr
	}
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

// moved marks an inode that got a new name, if it is homed here.
func (t *step) moved(ino, dir metadata.Ino, name string) error {
	if !t.s.here(ino) {
		return nil
	}
	n, err := t.inode(ino)
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	n.Ctime = t.now
	if n.isDir() {
		n.parent, n.text = dir, name
	}
	t.put(n)
	return nil
}
