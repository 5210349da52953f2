package chunkstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Spare manages objects that can be removed when a write needs their space. They count as free.
type Spare interface {
	// Bytes returns how much can be freed.
	Bytes() int64
	// GiveBack frees n bytes or more, if it can, and reports whether it or a concurrent call freed anything.
	GiveBack(n int64) bool
}

// SetSpare sets the manager of the spare objects.
func (s *Store) SetSpare(x Spare) { s.spare.Store(&x) }

func (s *Store) spareBytes() int64 {
	if x := s.spare.Load(); x != nil {
		return (*x).Bytes()
	}
	return 0
}

// maxGiveBacks bounds how often one write asks for space, since other writes may take it.
const maxGiveBacks = 8

// spend is trySpend, but removes kept objects, then spare ones, if there is no room.
func (s *Store) spend(ctx context.Context, ino metadata.Ino, off, most int64, fn func(*object) error) error {
	err := s.trySpend(ctx, ino, off, most, fn)
	for i := 0; i < maxGiveBacks && errors.Is(err, syscall.ENOSPC) && ctx.Err() == nil; i++ {
		if x := s.spare.Load(); !s.giveBackKept(most) && (x == nil || !(*x).GiveBack(most)) {
			break
		}
		err = s.trySpend(ctx, ino, off, most, fn)
	}
	return err
}

// WriteSpare is WriteAt for a spare object: it takes only free space, and removes nothing.
func (s *Store) WriteSpare(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	if err := s.writeAt(ctx, ino, p, off, s.trySpend); err != nil {
		return fmt.Errorf("object %v: write at %d: %w", ino, off, err)
	}
	return nil
}

// Rename atomically makes the object of from the object of to. EEXIST if to has one.
func (s *Store) Rename(ctx context.Context, from, to metadata.Ino) error {
	if f, _, err := s.find(to); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			_ = f.Close() // nothing was written
			err = syscall.EEXIST
		}
		return fmt.Errorf("object %v: rename to %v: %w", from, to, err)
	}
	err := s.useAlone(ctx, from, func(o *object) error {
		s.forgetSums(o)
		path := o.place.path(to)
		err := s.cfg.FS.Rename(o.place.path(from), path)
		if errors.Is(err, fs.ErrNotExist) { // the first object of its directory
			if err = s.cfg.FS.Mkdir(filepath.Dir(path)); err == nil {
				err = s.cfg.FS.Rename(o.place.path(from), path)
			}
		}
		if err != nil {
			return err
		}
		o.gone = true
		s.table.detach(o)
		return nil
	})
	if err != nil {
		return fmt.Errorf("object %v: rename to %v: %w", from, to, err)
	}
	return nil
}
