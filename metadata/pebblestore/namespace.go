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

// Lookup implements metadata.Namespace.
func (s *Store) Lookup(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	if err := checkName(name); err != nil {
		return metadata.Entry{}, err
	}
	if !s.here(dir) {
		if err := s.checkReadable(dir, name); err != nil {
			return metadata.Entry{}, err
		}
	}
	for {
		e, err := s.lookup(dir, name)
		if err == nil {
			return e, nil
		}
		if err := s.await(ctx, err); err != nil {
			return metadata.Entry{}, err
		}
	}
}

// lookup is one attempt of Lookup.
func (s *Store) lookup(dir metadata.Ino, name string) (metadata.Entry, error) {
	if err := s.begin(); err != nil {
		return metadata.Entry{}, err
	}
	defer s.end()
	for {
		if err := s.txLocks.checkFree(dir, name); err != nil {
			return metadata.Entry{}, err
		}
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
		if err := s.txLocks.checkFree(e.ino, ""); err != nil {
			return metadata.Entry{}, err
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

// missing returns ENOENT for a missing name, or the reason why dir has no names.
func (s *Store) missing(dir metadata.Ino, name string) error {
	if err := s.checkReadable(dir, name); err != nil {
		return err
	}
	if !s.here(dir) {
		return named(dir, name, syscall.ENOENT)
	}
	n, err := s.inode(dir)
	if err != nil {
		return err
	}
	if !n.isDir() {
		return fmt.Errorf("inode %v: %w", dir, syscall.ENOTDIR)
	}
	return named(dir, name, syscall.ENOENT)
}

// dangling returns nil if the entry, whose inode was not found, has changed since: the lookup lost a race. Otherwise a
// record is lost, and it returns an error.
func (s *Store) dangling(dir metadata.Ino, name string, was entry) error {
	e, err := s.entry(dir, name)
	if err != nil {
		return err
	}
	if e == was {
		return named(dir, name, fmt.Errorf("inode %v is lost: %w", e.ino, syscall.EIO))
	}
	return nil
}

// Create implements metadata.Namespace. A mode without a type is a regular file.
func (s *Store) Create(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if err := checkFile(&n); err != nil {
		return metadata.Attr{}, named(dir, name, err)
	}
	return s.create1(ctx, dir, name, n)
}

// checkFile validates n for Create.
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

// create1 creates an inode of any type and its entry in dir, in one step.
func (s *Store) create1(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if err := checkName(name); err != nil {
		return metadata.Attr{}, err
	}
	var a metadata.Attr
	err := s.retry(ctx, func() (err error) {
		a, err = s.create1Locked(dir, name, n)
		return err
	})
	return a, err
}

func (s *Store) create1Locked(dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	defer s.locks.lock(dir).unlock()
	if err := s.txLocks.checkFree(dir, name); err != nil {
		return metadata.Attr{}, err
	}
	t := s.step()
	defer t.close()
	d, err := t.dirOf(dir, name)
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
	t.enter(d, name, entry{c.Ino, c.Mode})
	c.Ctime = d.Ctime
	t.put(c)
	t.put(d)
	return c.Attr, t.commit()
}

// make fills in a new inode in parent.
func (t *step) make(parent *inode, n metadata.New) (*inode, error) {
	if err := t.s.room(); err != nil {
		return nil, err
	}
	ino, err := t.s.newIno()
	if err != nil {
		return nil, err
	}
	c := t.fresh(ino, n)
	c.Layout = n.Layout.Under(parent.Layout)
	if parent.Mode&syscall.S_ISGID != 0 {
		c.GID = parent.GID
		if c.isDir() {
			c.Mode |= syscall.S_ISGID
		}
	}
	return c, nil
}

// fresh returns the inode described by n.
func (t *step) fresh(ino metadata.Ino, n metadata.New) *inode {
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
	return c
}

// Parent returns the attributes of dir that a new entry name inherits. It runs on the node that keeps that entry.
func (s *Store) Parent(_ context.Context, dir metadata.Ino, name string) (metadata.Attr, error) {
	var a metadata.Attr
	err := s.once(func() error {
		if err := s.checkReadable(dir, name); err != nil {
			return err
		}
		t := s.step()
		defer t.close()
		d, err := t.dir(dir)
		if err == nil {
			a = d.Attr
		}
		return err
	})
	return a, err
}

// existing returns the result of Create for a taken name.
func (s *Store) existing(e entry) metadata.Attr {
	if s.here(e.ino) {
		if n, err := s.inode(e.ino); err == nil {
			return n.Attr
		}
	}
	return metadata.Attr{Ino: e.ino, Mode: e.mode}
}

// Unlink implements metadata.Namespace. It returns EXDEV if the inode is on another node.
func (s *Store) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	if err := checkName(name); err != nil {
		return metadata.Entry{}, err
	}
	var gone metadata.Entry
	err := s.onEntry(ctx, dir, name, func(t *step, d *inode, e entry) error {
		if isDir(e.mode) {
			return named(dir, name, syscall.EISDIR)
		}
		if !s.here(e.ino) {
			return otherHome(e.ino)
		}
		n, err := t.inode(e.ino)
		if err != nil {
			return err
		}
		t.leave(d, name)
		t.now = d.Ctime
		t.unlink(n)
		gone = metadata.Entry{Name: name, Ino: e.ino, Mode: n.Mode, Attr: &n.Attr}
		d.Mtime, d.Ctime = n.Ctime, n.Ctime
		t.put(d)
		return nil
	})
	if err != nil {
		return metadata.Entry{}, err
	}
	return gone, nil
}

// otherHome returns the error for an inode of another node.
func otherHome(ino metadata.Ino) error {
	return fmt.Errorf("inode %v is on node %d: %w", ino, ino.Home(), syscall.EXDEV)
}

// onEntry runs one step on an existing entry, with its directory and its inode locked, and commits it.
func (s *Store) onEntry(ctx context.Context, dir metadata.Ino, name string, fn func(*step, *inode, entry) error) error {
	return s.retry(ctx, func() error {
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
	})
}

// onEntryLocked returns again if the entry changed before the locks were taken.
func (s *Store) onEntryLocked(dir metadata.Ino, name string, seen entry, fn func(*step, *inode, entry) error) (again bool, err error) {
	defer s.locks.lock(dir, seen.ino).unlock()
	if err := s.txLocks.checkFree(dir, name, seen.ino); err != nil {
		return false, err
	}
	t := s.step()
	defer t.close()
	d, err := t.dirOf(dir, name)
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

// ReadDir implements metadata.Namespace. The entries are from one snapshot.
func (s *Store) ReadDir(ctx context.Context, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
	return s.readDir(ctx, page{dir, after, limit}, func(snap *pebble.Snapshot) error {
		return s.notSharded(dir, reader{snap})
	}, s.fill)
}

// notSharded returns nil for a directory that was not sharded at snapshot r.
func (s *core) notSharded(dir metadata.Ino, r reader) error {
	if d, _ := s.sharded.get(dir); d != nil || !s.here(dir) {
		return &metadata.Redirect{Dir: dir, Epoch: s.Epoch(dir)}
	}
	n, err := r.inode(dir)
	if err != nil {
		return err
	}
	if !n.isDir() {
		return fmt.Errorf("inode %v: %w", dir, syscall.ENOTDIR)
	}
	return nil
}

// page is a request to list a part of a directory.
type page struct {
	dir   metadata.Ino
	after string
	limit int
}

// readDir lists entries on this node. may checks at the snapshot whether they are to be listed here; make decodes them.
func (s *core) readDir(ctx context.Context, p page, may func(*pebble.Snapshot) error, make makeEntry) ([]metadata.Entry, error) {
	if err := s.awaitTransactions(ctx, p.dir); err != nil {
		return nil, err
	}
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	if err := checkRead(p); err != nil {
		return nil, err
	}
	snap := s.db.NewSnapshot()
	defer snap.Close()
	if err := may(snap); err != nil {
		return nil, err
	}
	return entries(ctx, reader{snap}, p, make)
}

// makeEntry decodes the value of the entry name.
type makeEntry func(r reader, name string, value []byte) (metadata.Entry, error)

func checkRead(p page) error {
	if p.limit <= 0 || len(p.after) > metadata.MaxName {
		return fmt.Errorf("read of directory %v: limit %d, after %.32q: %w", p.dir, p.limit, p.after, syscall.EINVAL)
	}
	return nil
}

// entries collects the result of ReadDir.
func entries(ctx context.Context, r reader, p page, make makeEntry) ([]metadata.Entry, error) {
	lower := entryKey(p.dir, p.after)
	if p.after != "" {
		lower = append(lower, 0)
	}
	var all []metadata.Entry
	err := scan(r.r, "metadata store", lower, entriesEnd(p.dir), func(k, v []byte) (bool, error) {
		e, err := make(r, string(k[entryNameAt:]), v)
		if err != nil {
			return false, err
		}
		all = append(all, e)
		return len(all) < p.limit, interrupted(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("read of directory %v: %w", p.dir, err)
	}
	return all, nil
}

// entryOnly decodes an entry without an Attr.
func entryOnly(_ reader, name string, value []byte) (metadata.Entry, error) {
	e, err := parseEntry(value)
	if err != nil {
		return metadata.Entry{}, fmt.Errorf("record of entry %q: %w", name, err)
	}
	return metadata.Entry{Name: name, Ino: e.ino, Mode: e.mode}, nil
}

// fill decodes an entry with its Attr. A missing inode does not fail the listing: its entry has no Attr, like one with
// another home.
func (s *core) fill(r reader, name string, value []byte) (metadata.Entry, error) {
	out, err := entryOnly(r, name, value)
	if err != nil || !s.here(out.Ino) {
		return out, err
	}
	n, err := r.inode(out.Ino)
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
