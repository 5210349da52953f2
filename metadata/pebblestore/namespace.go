package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/bivouacfs/bivouac/metadata"
)

// maxTarget is the longest target of a symbolic link, in bytes.
const maxTarget = 4095

// Lookup is metadata.Namespace.
func (s *Store) Lookup(_ context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	if err := s.begin(); err != nil {
		return metadata.Entry{}, err
	}
	defer s.end()
	if err := checkName(name); err != nil {
		return metadata.Entry{}, err
	}
	for {
		e, err := s.entry(dir, name)
		if err != nil {
			return metadata.Entry{}, err
		}
		if e.ino == 0 {
			return metadata.Entry{}, s.missing(dir, name)
		}
		if !s.here(e.ino) {
			return metadata.Entry{Name: name, Ino: e.ino, Mode: e.mode}, nil
		}
		n, err := s.inode(e.ino)
		if err == nil {
			return metadata.Entry{Name: name, Ino: e.ino, Mode: n.Mode, Attr: &n.Attr}, nil
		}
		if !errors.Is(err, syscall.ENOENT) {
			return metadata.Entry{}, err
		}
		if err := s.dangling(dir, name, e); err != nil {
			return metadata.Entry{}, err
		}
	}
}

// missing tells a name that is not there from a directory that is not one.
func (s *Store) missing(dir metadata.Ino, name string) error {
	n, err := s.inode(dir)
	if err != nil {
		return err
	}
	if !n.isDir() {
		return fmt.Errorf("inode %v: %w", dir, syscall.ENOTDIR)
	}
	return named(dir, name, syscall.ENOENT)
}

// dangling is nil if the entry, whose inode was not found, has changed since:
// then it lost a race. If not, it is a directory that was dropped before its
// name, or a record is lost.
func (s *Store) dangling(dir metadata.Ino, name string, was entry) error {
	e, err := s.entry(dir, name)
	if err != nil {
		return err
	}
	if e == was && isDir(e.mode) {
		return named(dir, name, syscall.ENOENT)
	}
	if e == was {
		return named(dir, name, fmt.Errorf("inode %v is lost: %w", e.ino, syscall.EIO))
	}
	return nil
}

// Create is metadata.Namespace. A mode without a type is a regular file.
func (s *Store) Create(_ context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if err := s.begin(); err != nil {
		return metadata.Attr{}, err
	}
	defer s.end()
	if err := checkFile(&n); err != nil {
		return metadata.Attr{}, named(dir, name, err)
	}
	return s.create1(dir, name, n)
}

// checkFile says whether n can be the inode of a Create.
func checkFile(n *metadata.New) error {
	if n.Mode&syscall.S_IFMT == 0 {
		n.Mode |= syscall.S_IFREG
	}
	n.Mode &= syscall.S_IFMT | 0o7777
	switch n.Mode & syscall.S_IFMT {
	case syscall.S_IFLNK:
		return checkTarget(n.Target)
	case syscall.S_IFREG, syscall.S_IFIFO, syscall.S_IFSOCK, syscall.S_IFCHR, syscall.S_IFBLK:
		if n.Target == "" {
			return nil
		}
	}
	return fmt.Errorf("mode %o: %w", n.Mode, syscall.EINVAL)
}

func checkTarget(target string) error {
	switch {
	case target == "":
		return fmt.Errorf("empty target: %w", syscall.ENOENT)
	case len(target) > maxTarget:
		return fmt.Errorf("target of %d bytes: %w", len(target), syscall.ENAMETOOLONG)
	case strings.Contains(target, "\x00"):
		return fmt.Errorf("target %q: %w", target, syscall.EINVAL)
	}
	return nil
}

// create1 makes an inode of any type and enters it in dir, in one step.
func (s *Store) create1(dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if err := checkName(name); err != nil {
		return metadata.Attr{}, err
	}
	defer s.locks.lock(dir).unlock()
	t := s.step()
	defer t.close()
	d, err := t.dir(dir)
	if err != nil {
		return metadata.Attr{}, err
	}
	if e, err := s.entry(dir, name); err != nil {
		return metadata.Attr{}, err
	} else if e.ino != 0 {
		return s.existing(e), named(dir, name, syscall.EEXIST)
	}
	c, err := t.make(d, n)
	if err != nil {
		return metadata.Attr{}, err
	}
	if c.isDir() {
		d.Nlink++
		c.parent, c.text = dir, name
	}
	t.put(c)
	t.enter(d, name, entry{c.Ino, c.Mode})
	t.put(d)
	return c.Attr, t.commit()
}

// make fills a new inode; parent is nil if it is on another node.
func (t *step) make(parent *inode, n metadata.New) (*inode, error) {
	ino, err := t.s.newIno()
	if err != nil {
		return nil, err
	}
	c := &inode{
		Attr: metadata.Attr{
			Ino: ino, Mode: n.Mode, Nlink: 1, UID: n.UID, GID: n.GID, Rdev: n.Rdev,
			Size: int64(len(n.Target)), Atime: t.now, Mtime: t.now, Ctime: t.now, Layout: n.Layout,
		},
		text: n.Target,
	}
	if c.isDir() {
		c.Nlink = 2
	}
	if parent != nil && parent.Mode&syscall.S_ISGID != 0 {
		c.GID = parent.GID
		if c.isDir() {
			c.Mode |= syscall.S_ISGID
		}
	}
	return c, nil
}

// existing is what Create tells of a name that is taken.
func (s *Store) existing(e entry) metadata.Attr {
	if s.here(e.ino) {
		if n, err := s.inode(e.ino); err == nil {
			return n.Attr
		}
	}
	return metadata.Attr{Ino: e.ino, Mode: e.mode}
}

// Unlink is metadata.Namespace. If the entry has no Attr, its inode is on
// another node, where the caller has to lower its links by Relink.
func (s *Store) Unlink(_ context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	if err := s.begin(); err != nil {
		return metadata.Entry{}, err
	}
	defer s.end()
	if err := checkName(name); err != nil {
		return metadata.Entry{}, err
	}
	var gone metadata.Entry
	err := s.onEntry(dir, name, func(t *step, d *inode, e entry) error {
		if isDir(e.mode) {
			return named(dir, name, syscall.EISDIR)
		}
		gone = metadata.Entry{Name: name, Ino: e.ino, Mode: e.mode}
		if s.here(e.ino) {
			n, err := t.inode(e.ino)
			if err != nil {
				return err
			}
			t.unlink(n)
			gone.Mode, gone.Attr = n.Mode, &n.Attr
		}
		t.leave(d, name)
		t.put(d)
		return nil
	})
	if err != nil {
		return metadata.Entry{}, err
	}
	return gone, nil
}

// onEntry runs one step on an existing entry, with its directory and its inode
// locked, and commits it.
func (s *Store) onEntry(dir metadata.Ino, name string, fn func(*step, *inode, entry) error) error {
	for {
		seen, err := s.entry(dir, name)
		if err != nil {
			return err
		}
		again, err := s.onEntryLocked(dir, name, seen, fn)
		if !again {
			return err
		}
	}
}

// onEntryLocked asks for another round if the entry is not what was seen
// before the locks were taken.
func (s *Store) onEntryLocked(dir metadata.Ino, name string, seen entry, fn func(*step, *inode, entry) error) (again bool, err error) {
	defer s.locks.lock(dir, seen.ino).unlock()
	t := s.step()
	defer t.close()
	d, err := t.dir(dir)
	if err != nil {
		return false, err
	}
	e, err := s.entry(dir, name)
	switch {
	case err != nil:
		return false, err
	case e != seen:
		return true, nil
	case e.ino == 0:
		return false, named(dir, name, syscall.ENOENT)
	}
	if err := fn(t, d, e); err != nil {
		return false, err
	}
	return false, t.commit()
}

// ReadDir is metadata.Namespace. The entries are those of one moment.
func (s *Store) ReadDir(ctx context.Context, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	if limit <= 0 || len(after) > metadata.MaxName {
		return nil, fmt.Errorf("read of directory %v: limit %d, after %.32q: %w", dir, limit, after, syscall.EINVAL)
	}
	snap := s.db.NewSnapshot()
	defer snap.Close()
	n, err := reader{snap}.inode(dir)
	if err != nil {
		return nil, err
	}
	if !n.isDir() {
		return nil, fmt.Errorf("inode %v: %w", dir, syscall.ENOTDIR)
	}
	return s.entries(ctx, reader{snap}, dir, after, limit)
}

// entries collects what ReadDir returns.
func (s *Store) entries(ctx context.Context, r reader, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
	lower := entryKey(dir, after)
	if after != "" {
		lower = append(lower, 0)
	}
	it, err := r.r.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: entriesEnd(dir)})
	if err != nil {
		return nil, ioError("metadata store", err)
	}
	var all []metadata.Entry
	for ok := it.First(); ok && len(all) < limit && err == nil; ok = it.Next() {
		var e metadata.Entry
		if e, err = s.fill(r, string(it.Key()[entryNameAt:]), it.Value()); err == nil {
			all = append(all, e)
			err = interrupted(ctx)
		}
	}
	if e := it.Close(); err == nil {
		err = ioError("metadata store", e)
	}
	if err != nil {
		return nil, fmt.Errorf("read of directory %v: %w", dir, err)
	}
	return all, nil
}

// fill makes the entry name of its value. An inode that is not there does not
// spoil the whole listing: it is as if it were elsewhere.
func (s *Store) fill(r reader, name string, value []byte) (metadata.Entry, error) {
	e, err := parseEntry(value)
	if err != nil {
		return metadata.Entry{}, fmt.Errorf("record of entry %q: %w", name, err)
	}
	out := metadata.Entry{Name: name, Ino: e.ino, Mode: e.mode}
	if !s.here(e.ino) {
		return out, nil
	}
	n, err := r.inode(e.ino)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return out, nil
	case err != nil:
		return metadata.Entry{}, fmt.Errorf("entry %q: %w", name, err)
	}
	out.Mode, out.Attr = n.Mode, &n.Attr
	return out, nil
}

func interrupted(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", syscall.EINTR, err)
	}
	return nil
}
