package pebblestore

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// NewDir is metadata.Halves. Where parent is homed here, the group of a setgid
// directory is inherited; elsewhere the caller has to have put it into n.
func (s *Store) NewDir(_ context.Context, parent metadata.Ino, n metadata.New) (metadata.Attr, error) {
	if err := s.begin(); err != nil {
		return metadata.Attr{}, err
	}
	defer s.end()
	if err := checkDir(&n); err != nil {
		return metadata.Attr{}, err
	}
	t := s.step()
	defer t.close()
	var p *inode
	if s.here(parent) {
		var err error
		if p, err = t.dir(parent); err != nil {
			return metadata.Attr{}, err
		}
	}
	c, err := t.make(p, n)
	if err != nil {
		return metadata.Attr{}, err
	}
	t.put(c)
	return c.Attr, t.commit()
}

// DropDir is metadata.Halves.
func (s *Store) DropDir(_ context.Context, ino metadata.Ino) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	if ino == metadata.RootIno {
		return fmt.Errorf("root directory: %w", syscall.EBUSY)
	}
	_, err := s.onInode(ino, func(t *step, n *inode) error {
		if !n.isDir() {
			return fmt.Errorf("inode %v: %w", ino, syscall.ENOTDIR)
		}
		return t.dropDir(n)
	})
	return err
}

// Enter is metadata.Halves. The entry that was replaced has no Attr, because no
// inode is changed but dir: its links are the caller's to lower, by Relink. If
// it was a directory, the caller has dropped it before; one that is homed here
// and still has entries is ENOTEMPTY.
func (s *Store) Enter(_ context.Context, dir metadata.Ino, e metadata.Entry, replace bool) (*metadata.Entry, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	if err := checkName(e.Name); err != nil {
		return nil, err
	}
	if e.Ino == 0 || e.Ino.Sealed() || e.Mode&syscall.S_IFMT == 0 {
		return nil, named(dir, e.Name, fmt.Errorf("entry of %v, mode %o: %w", e.Ino, e.Mode, syscall.EINVAL))
	}
	for {
		seen, err := s.entry(dir, e.Name)
		if err != nil {
			return nil, err
		}
		replaced, again, err := s.enterLocked(dir, e, replace, seen)
		if !again {
			return replaced, err
		}
	}
}

func (s *Store) enterLocked(dir metadata.Ino, e metadata.Entry, replace bool, seen entry) (replaced *metadata.Entry, again bool, err error) {
	defer s.locks.lock(dir, e.Ino, seen.ino).unlock()
	t := s.step()
	defer t.close()
	d, err := t.dir(dir)
	if err != nil {
		return nil, false, err
	}
	old, err := s.entry(dir, e.Name)
	switch {
	case err != nil:
		return nil, false, err
	case old != seen:
		return nil, true, nil
	case old.ino != 0 && !replace:
		return nil, false, named(dir, e.Name, syscall.EEXIST)
	case old.ino == e.Ino:
		return nil, false, nil
	case old.ino != 0:
		if err := t.displace(d, old, isDir(e.Mode)); err != nil {
			return nil, false, named(dir, e.Name, err)
		}
		replaced = &metadata.Entry{Name: e.Name, Ino: old.ino, Mode: old.mode}
	}
	if isDir(e.Mode) {
		d.Nlink++
		if err := t.moved(e.Ino, dir, e.Name); err != nil {
			return nil, false, err
		}
	}
	t.enter(d, e.Name, entry{e.Ino, e.Mode})
	t.put(d)
	return replaced, false, t.commit()
}

// displace makes room for an entry of another inode by Enter.
func (t *step) displace(d *inode, old entry, byDir bool) error {
	switch {
	case isDir(old.mode) && !byDir:
		return syscall.EISDIR
	case !isDir(old.mode) && byDir:
		return syscall.ENOTDIR
	case !byDir:
		return nil
	}
	if t.s.here(old.ino) {
		if _, err := t.dropEntryDir(old); err != nil {
			return err
		}
	}
	d.Nlink--
	return nil
}

// Remove is metadata.Halves.
func (s *Store) Remove(_ context.Context, dir metadata.Ino, name string, ino metadata.Ino) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	if err := checkName(name); err != nil {
		return err
	}
	return s.onEntry(dir, name, func(t *step, d *inode, e entry) error {
		if e.ino != ino {
			return named(dir, name, fmt.Errorf("names %v, not %v: %w", e.ino, ino, syscall.ESTALE))
		}
		if isDir(e.mode) {
			d.Nlink--
		}
		t.leave(d, name)
		t.put(d)
		return nil
	})
}

// Relink is metadata.Halves. It is EPERM for a directory and ENOENT for an
// orphan, whose data may be gone already.
func (s *Store) Relink(_ context.Context, ino metadata.Ino, delta int) (metadata.Attr, error) {
	if err := s.begin(); err != nil {
		return metadata.Attr{}, err
	}
	defer s.end()
	return s.onInode(ino, func(t *step, n *inode) error { return t.relink(n, delta) })
}
