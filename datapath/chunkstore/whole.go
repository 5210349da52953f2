package chunkstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// WholeDir is the subdirectory of each store directory with links to whole objects. A program that opens files there
// itself, as a kernel view does, never finds one that is still being written.
const WholeDir = "whole"

// wholePath returns the path of the link to ino's object.
func (p *place) wholePath(ino metadata.Ino) string {
	return p.named(WholeDir, ino)
}

// LinkWhole creates the link to ino's object. f is the open object, which the caller knows to be whole: an object that
// has replaced it gets no link. If f is nil, the present object is linked.
func (s *Store) LinkWhole(ctx context.Context, ino metadata.Ino, f *os.File) error {
	err := s.use(ctx, ino, false, func(o *object) error { // prevents its removal meanwhile
		s.linked.Store(true)
		from, to := o.place.path(ino), o.place.wholePath(ino)
		if f != nil {
			from = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		}
		err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
		if errors.Is(err, fs.ErrNotExist) { // the first link in its directory, or f was removed
			if err = s.cfg.FS.Mkdir(filepath.Dir(to)); err == nil {
				err = unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
			}
		}
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	})
	return wrap("link", ino, err)
}

// Linked reports whether there is a link to ino's object.
func (s *Store) Linked(ino metadata.Ino) bool {
	return slices.ContainsFunc(s.places, func(p *place) bool { return unix.Access(p.wholePath(ino), unix.F_OK) == nil })
}

// Unlink removes the link to ino's object, if there is one.
func (s *Store) Unlink(ino metadata.Ino) error {
	var errs []error
	for _, p := range s.places {
		errs = append(errs, s.unlink(p, ino))
	}
	return wrap("unlink", ino, errors.Join(errs...))
}

func (s *Store) unlink(p *place, ino metadata.Ino) error {
	if !ino.Sealed() || !s.linked.Load() {
		return nil
	}
	if err := unix.Unlink(p.wholePath(ino)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// openWhole finds whether an earlier run of the daemon has made links. They stay valid: none is made before its object
// is whole, and none outlives its object.
func (s *Store) openWhole() error {
	for _, p := range s.places {
		dir := filepath.Join(p.dir, WholeDir)
		if _, err := os.Stat(dir); err == nil {
			s.linked.Store(true)
		}
		if err := s.cfg.FS.Mkdir(dir); err != nil {
			return err
		}
	}
	return nil
}
