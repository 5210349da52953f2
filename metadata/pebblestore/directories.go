package pebblestore

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Mkdir implements metadata.Directories. The new directory is homed here; one with another home needs a transaction.
func (s *Store) Mkdir(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if err := checkDir(&n); err != nil {
		return metadata.Attr{}, named(dir, name, err)
	}
	return s.create1(ctx, dir, name, n)
}

func checkDir(n *metadata.New) error {
	if t := n.Mode & syscall.S_IFMT; t != 0 && t != syscall.S_IFDIR || n.Target != "" {
		return fmt.Errorf("mode %o of a directory: %w", n.Mode, syscall.EINVAL)
	}
	n.Mode = syscall.S_IFDIR | n.Mode&0o7777
	n.Rdev = 0
	return nil
}

// Rmdir implements metadata.Directories. It returns EXDEV for a directory with another home.
func (s *Store) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return s.onEntry(ctx, dir, name, func(t *step, d *inode, e entry) error {
		if !isDir(e.mode) {
			return named(dir, name, syscall.ENOTDIR)
		}
		if _, err := t.dropEntryDir(e); err != nil {
			return named(dir, name, err)
		}
		t.leave(d, name)
		d.Nlink--
		t.put(d)
		return nil
	})
}

// dropEntryDir removes the directory of an entry, if it is homed here and empty.
func (t *step) dropEntryDir(e entry) (*inode, error) {
	if !t.s.here(e.ino) {
		return nil, otherHome(e.ino)
	}
	n, err := t.inode(e.ino)
	if err != nil {
		return nil, err
	}
	return n, t.dropDir(n)
}

func (t *step) dropDir(n *inode) error {
	if n.Ino == metadata.RootIno {
		return fmt.Errorf("root directory: %w", syscall.EBUSY)
	}
	if d, g := t.s.sharded.get(n.Ino); d != nil || g != nil && g.frozen {
		return &ShardedError{Dir: n.Ino}
	}
	empty, err := t.s.empty(n.Ino)
	if err != nil {
		return err
	}
	if !empty {
		return fmt.Errorf("directory %v: %w", n.Ino, syscall.ENOTEMPTY)
	}
	t.drop(n)
	return nil
}

// Link implements metadata.Directories. It returns EXDEV for an inode with another home.
func (s *Store) Link(ctx context.Context, ino, dir metadata.Ino, name string) (metadata.Attr, error) {
	if err := checkName(name); err != nil {
		return metadata.Attr{}, err
	}
	if !s.here(ino) {
		return metadata.Attr{}, otherHome(ino)
	}
	if err := s.room(); err != nil {
		return metadata.Attr{}, err
	}
	var a metadata.Attr
	err := s.retry(ctx, func() (err error) {
		a, err = s.linkLocked(ino, dir, name)
		return err
	})
	return a, err
}

func (s *Store) linkLocked(ino, dir metadata.Ino, name string) (metadata.Attr, error) {
	defer s.locks.lock(ino, dir).unlock()
	if err := s.txLocks.checkFree(dir, name, ino); err != nil {
		return metadata.Attr{}, err
	}
	t := s.step()
	defer t.close()
	d, err := t.dirOf(dir, name)
	if err != nil {
		return metadata.Attr{}, err
	}
	n, err := t.inode(ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	if e, err := s.entry(dir, name); err != nil {
		return metadata.Attr{}, err
	} else if e.ino != 0 {
		return metadata.Attr{}, named(dir, name, syscall.EEXIST)
	}
	if err := t.relink(n, 1); err != nil {
		return metadata.Attr{}, err
	}
	t.enter(d, name, entry{ino, n.Mode})
	t.put(d)
	return n.Attr, t.commit()
}

// relink adds delta to the links of a file and writes it. An orphan can get a link only if CreateUnnamed made it: the
// data of other orphans may already be removed.
func (t *step) relink(n *inode, delta int) error {
	links := int64(n.Nlink) + int64(delta)
	switch {
	case n.isDir():
		return fmt.Errorf("links of directory %v: %w", n.Ino, syscall.EPERM)
	case n.Nlink == 0:
		if ok, err := t.s.nameable(n.Ino); err != nil || !ok || delta < 0 {
			return fmt.Errorf("links of orphan %v: %w", n.Ino, cmp.Or(err, error(syscall.ENOENT)))
		}
		t.note(t.b.Delete(orphanKey(n.Ino), nil))
		t.named = append(t.named, n.Ino)
	case links < 0:
		return fmt.Errorf("inode %v has %d links, not %d: %w", n.Ino, n.Nlink, -delta, syscall.EINVAL)
	case links > math.MaxInt32:
		return fmt.Errorf("inode %v: %w", n.Ino, syscall.EMLINK)
	}
	n.Nlink = uint32(links)
	t.changed(n)
	if links == 0 {
		t.orphan(n)
	}
	t.put(n)
	return nil
}
