package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Getattr implements metadata.Inodes.
func (s *Store) Getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	for {
		a, err := s.getattr(ino)
		if err == nil {
			return a, nil
		}
		if err := s.await(ctx, err); err != nil {
			return metadata.Attr{}, err
		}
	}
}

// getattr is one attempt of Getattr.
func (s *Store) getattr(ino metadata.Ino) (metadata.Attr, error) {
	if err := s.begin(); err != nil {
		return metadata.Attr{}, err
	}
	defer s.end()
	if err := s.txLocks.checkFree(ino, ""); err != nil {
		return metadata.Attr{}, err
	}
	n, err := s.inode(ino)
	return n.Attr, err
}

// Readlink implements metadata.Inodes.
func (s *Store) Readlink(_ context.Context, ino metadata.Ino) (string, error) {
	if err := s.begin(); err != nil {
		return "", err
	}
	defer s.end()
	n, err := s.inode(ino)
	if err != nil {
		return "", err
	}
	if n.Mode&syscall.S_IFMT != syscall.S_IFLNK {
		return "", fmt.Errorf("target of inode %v: %w", ino, syscall.EINVAL)
	}
	return n.text, nil
}

// Setattr implements metadata.Inodes. A SetSize without a time sets mtime to now, as truncate(2) does; a GrowSize does
// not.
func (s *Store) Setattr(_ context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	if err := s.begin(); err != nil {
		return metadata.Attr{}, err
	}
	defer s.end()
	var before metadata.Time
	a, err := s.onInode(ino, func(t *step, n *inode) error {
		before = n.Ctime
		t.now = later(t.now, n.Ctime)
		if err := change(n, c, t.now); err != nil {
			return fmt.Errorf("change of inode %v: %w", ino, err)
		}
		t.changed(n)
		t.put(n)
		return nil
	})
	a.Before = before
	return a, err
}

// changed sets the st_ctime of n. It always increases, even if the clock was set back or others changed the inode in
// between, because caches use it as the version of the inode.
func (t *step) changed(n *inode) { n.Ctime = max(t.now, n.Ctime+1) }

// later returns now, or the moment after was if the clock has not advanced: caches detect a change by the times.
func later(now, was metadata.Time) metadata.Time {
	if now <= was && was-now < metadata.Time(time.Second) {
		return was + 1
	}
	return now
}

// onInode runs one step on a locked inode, and commits it.
func (s *Store) onInode(ino metadata.Ino, fn func(*step, *inode) error) (metadata.Attr, error) {
	defer s.locks.lock(ino).unlock()
	t := s.step()
	defer t.close()
	n, err := t.inode(ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	if err := fn(t, n); err != nil {
		return metadata.Attr{}, err
	}
	return n.Attr, t.commit()
}

const knownSet = metadata.SetMode | metadata.SetUID | metadata.SetGID | metadata.SetSize | metadata.GrowSize |
	metadata.SetAtime | metadata.SetMtime | metadata.AtimeNow | metadata.MtimeNow |
	metadata.SetLayout | metadata.SetLayoutField | metadata.DropSetIDs

// change applies c to n; after an error n is invalid.
func change(n *inode, c metadata.Change, now metadata.Time) error {
	has := func(f metadata.Set) bool { return c.Set&f != 0 }
	if c.Set&^knownSet != 0 {
		return fmt.Errorf("unknown fields %#x: %w", c.Set&^knownSet, syscall.EINVAL)
	}
	if has(metadata.DropSetIDs) {
		n.Mode &^= metadata.SetIDs(n.Mode)
	}
	if has(metadata.SetMode) {
		n.Mode = n.Mode&syscall.S_IFMT | c.Mode&0o7777
	}
	if has(metadata.SetUID) {
		n.UID = c.UID
	}
	if has(metadata.SetGID) {
		n.GID = c.GID
	}
	if has(metadata.SetSize | metadata.GrowSize) {
		if err := resize(n, c, now); err != nil {
			return err
		}
	}
	if has(metadata.SetAtime) {
		n.Atime = c.Atime
	}
	if has(metadata.AtimeNow) {
		n.Atime = now
	}
	if has(metadata.SetMtime) {
		n.Mtime = c.Mtime
	}
	if has(metadata.MtimeNow) {
		n.Mtime = now
	}
	if has(metadata.SetLayout | metadata.SetLayoutField) {
		return relayout(n, c)
	}
	return nil
}

// relayout changes the layout that new files inherit, or that of an empty file. It keeps the map epoch of a file's
// layout.
func relayout(n *inode, c metadata.Change) error {
	switch {
	case c.Set&metadata.SetLayout != 0 && !n.isDir(), !n.isDir() && n.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return fmt.Errorf("inode type does not support this change of layout: %w", syscall.EINVAL)
	case !n.isDir() && n.Size > 0:
		return fmt.Errorf("layout of a file with data: %w", syscall.EBUSY)
	}
	if c.Set&metadata.SetLayout != 0 {
		n.Layout = c.Layout
	}
	if c.Set&metadata.SetLayoutKind != 0 {
		if c.Layout.Kind > metadata.Local {
			return fmt.Errorf("layout kind %d: %w", c.Layout.Kind, syscall.EINVAL)
		}
		n.Layout.Kind, n.Layout.Node = c.Layout.Kind, c.Layout.Node
	}
	if c.Set&metadata.SetChunkSize != 0 {
		n.Layout.ChunkSize = c.Layout.ChunkSize
	}
	if c.Set&metadata.SetWidth != 0 {
		n.Layout.Width = c.Layout.Width
	}
	if c.Set&metadata.SetCopies != 0 {
		if c.Layout.Copies > metadata.MaxCopies {
			return fmt.Errorf("%d copies: %w", c.Layout.Copies, syscall.EINVAL)
		}
		n.Layout.Copies = c.Layout.Copies
	}
	return metadata.CheckChunkSize(n.Layout.ChunkSize)
}

func resize(n *inode, c metadata.Change, now metadata.Time) error {
	switch {
	case n.isDir():
		return fmt.Errorf("size: %w", syscall.EISDIR)
	case n.Mode&syscall.S_IFMT != syscall.S_IFREG, c.Size < 0:
		return fmt.Errorf("size %d: %w", c.Size, syscall.EINVAL)
	case c.Set&metadata.SetSize != 0:
		n.Size, n.Mtime = c.Size, now
	default:
		n.Size = max(n.Size, c.Size)
	}
	return nil
}

// Reap removes an orphan whose data the caller has removed. It does nothing if ino does not exist or is no orphan.
func (s *Store) Reap(ctx context.Context, ino metadata.Ino) error {
	err := s.retry(ctx, func() error {
		_, err := s.onInode(ino, func(t *step, n *inode) error {
			if err := s.txLocks.checkFree(ino, ""); err != nil {
				return err
			}
			if n.isDir() || n.Nlink > 0 {
				return nil
			}
			t.forget(n)
			t.note(t.b.Delete(orphanKey(ino), nil))
			return nil
		})
		return err
	})
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	return err
}

// Orphans calls fn with each orphan until fn returns false, to finish removals after a crash. fn may call Reap.
func (s *Store) Orphans(ctx context.Context, fn func(metadata.Attr) bool) error {
	all, err := s.orphans(ctx)
	if err != nil {
		return err
	}
	for _, a := range all {
		if !fn(a) {
			return nil
		}
	}
	return nil
}

func (s *Store) orphans(ctx context.Context) ([]metadata.Attr, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	snap := s.db.NewSnapshot()
	defer snap.Close()
	var all []metadata.Attr
	err := scanInos(snap, "orphans", prefixOrphan, func(ino metadata.Ino, _ []byte) error {
		n, err := reader{snap}.inode(ino)
		if err != nil {
			return err
		}
		all = append(all, n.Attr)
		return interrupted(ctx)
	})
	return all, err
}
