package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Getxattr implements metadata.Xattrs.
func (s *Store) Getxattr(_ context.Context, ino metadata.Ino, name string) ([]byte, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	v, err := s.get(xattrKey(ino, name))
	if !errors.Is(err, syscall.ENOENT) {
		return v, err
	}
	if _, err := s.inode(ino); err != nil {
		return nil, err
	}
	return nil, noXattr(ino, name)
}

// Setxattr implements metadata.Xattrs.
func (s *Store) Setxattr(_ context.Context, ino metadata.Ino, x metadata.Xattr) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	if err := errors.Join(x.Check(), s.room()); err != nil {
		return err
	}
	_, err := s.onInode(ino, func(t *step, n *inode) error {
		there, err := s.has(xattrKey(ino, x.Name))
		switch {
		case err != nil:
			return err
		case there && x.Mode == metadata.XattrCreate:
			return fmt.Errorf("attribute %q of inode %v: %w", x.Name, ino, syscall.EEXIST)
		case !there && x.Mode == metadata.XattrReplace:
			return noXattr(ino, x.Name)
		case !there:
			n.xattrs += uint32(len(x.Name) + 1)
		}
		if n.xattrs > metadata.MaxXattrList {
			return fmt.Errorf("attribute %q of inode %v: names of %d bytes: %w", x.Name, ino, n.xattrs, syscall.ENOSPC)
		}
		t.note(t.b.Set(xattrKey(ino, x.Name), x.Value, nil))
		t.changed(n)
		t.put(n)
		return nil
	})
	return err
}

// Listxattr implements metadata.Xattrs. The names are from one snapshot.
func (s *Store) Listxattr(_ context.Context, ino metadata.Ino) ([]string, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	n, err := s.inode(ino)
	if err != nil || n.xattrs == 0 {
		return nil, err
	}
	var names []string
	err = scan(s.db, "metadata store", xattrKey(ino, ""), xattrsEnd(ino), func(k, _ []byte) (bool, error) {
		names = append(names, string(k[xattrNameAt:]))
		return true, nil
	})
	return names, err
}

// Removexattr implements metadata.Xattrs.
func (s *Store) Removexattr(_ context.Context, ino metadata.Ino, name string) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	_, err := s.onInode(ino, func(t *step, n *inode) error {
		there, err := s.has(xattrKey(ino, name))
		if err != nil {
			return err
		}
		if !there {
			return noXattr(ino, name)
		}
		t.note(t.b.Delete(xattrKey(ino, name), nil))
		n.xattrs -= min(n.xattrs, uint32(len(name)+1))
		t.changed(n)
		t.put(n)
		return nil
	})
	return err
}

// has reports whether the store has a key.
func (s *Store) has(key []byte) (bool, error) {
	_, err := s.get(key)
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

func noXattr(ino metadata.Ino, name string) error {
	return fmt.Errorf("attribute %.32q of inode %v: %w", name, ino, syscall.ENODATA)
}
