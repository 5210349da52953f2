package chunkstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

const objectsDir = "objects"

// eachDir calls fn for the 256 directories that every store directory can have,
// several at a time.
func (s *Store) eachDir(fn func(dir string) error) error {
	var g errgroup.Group
	g.SetLimit(8)
	for _, d := range s.cfg.Dirs {
		for i := range 256 {
			g.Go(func() error { return fn(filepath.Join(d, objectsDir, fmt.Sprintf("%02x", i))) })
		}
	}
	return g.Wait()
}

// list calls fn for the objects in dir, which need not be there. Files that are
// no objects of this store are counted and left alone.
func (s *Store) list(dir string, fn func(metadata.Ino, Stat)) (strangers int64, err error) {
	err = s.cfg.FS.ReadDir(dir, func(name string, st Stat) {
		n, err := strconv.ParseUint(name, 16, 64)
		if ino := metadata.Ino(n); err == nil && s.path(ino) == filepath.Join(dir, name) {
			fn(ino, st)
			return
		}
		strangers++
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return strangers, err
}

// scan makes the store directories and counts the objects that are there. The
// directories below are made when their first object is.
func (s *Store) scan() error {
	for _, d := range s.cfg.Dirs {
		if err := s.cfg.FS.Mkdir(filepath.Join(d, objectsDir)); err != nil {
			return err
		}
	}
	var strangers atomic.Int64
	err := s.eachDir(func(dir string) error {
		n, err := s.list(dir, func(_ metadata.Ino, st Stat) {
			s.usage.settle(0, st.Alloc)
			s.usage.objects.Add(1)
		})
		strangers.Add(n)
		return err
	})
	if n := strangers.Load(); n > 0 {
		s.cfg.Log.WithField("files", n).Warn("files in the data store that are no objects of it are left alone")
	}
	return err
}

// RemoveAll removes the objects that match, and returns how many they were.
// It goes on after an error. Objects that are made meanwhile may stay.
func (s *Store) RemoveAll(match func(metadata.Ino) bool) (int, error) {
	var removed atomic.Int64
	err := s.eachDir(func(dir string) error {
		var inos []metadata.Ino
		_, err := s.list(dir, func(ino metadata.Ino, _ Stat) { inos = append(inos, ino) })
		errs := []error{err}
		for _, ino := range inos {
			if !match(ino) {
				continue
			}
			if err := s.Remove(context.Background(), ino); err != nil {
				errs = append(errs, err)
				continue
			}
			removed.Add(1)
		}
		return errors.Join(errs...)
	})
	return int(removed.Load()), err
}

// Space is the quota, what is used of it, and what can still be written.
func (s *Store) Space(context.Context) (datapath.Space, error) {
	sp := datapath.Space{Capacity: s.cfg.Capacity, Used: max(s.usage.used.Load(), 0), Objects: s.usage.objects.Load()}
	free, err := s.diskFree()
	if err != nil {
		return sp, err
	}
	sp.Free = free
	if sp.Capacity == 0 {
		sp.Capacity = sp.Used + free
		return sp, nil
	}
	sp.Free = max(min(free, sp.Capacity-s.usage.held.Load()), 0)
	return sp, nil
}

// diskFree sums the disks below the directories, each one once.
func (s *Store) diskFree() (int64, error) {
	var errs []error
	free, seen := int64(0), map[uint64]bool{}
	for _, dir := range s.cfg.Dirs {
		d, err := s.cfg.FS.Disk(dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !seen[d.ID] {
			seen[d.ID] = true
			free += d.Free
		}
	}
	return free, errors.Join(errs...)
}
