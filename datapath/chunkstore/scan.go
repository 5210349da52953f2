package chunkstore

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

const objectsDir = "objects"

// eachDir calls fn for the 256 subdirectories of the store directories, several at a time.
func (s *Store) eachDir(fn func(p *place, dir string) error) error {
	var g errgroup.Group
	g.SetLimit(8)
	for _, p := range s.places {
		for i := range Parts {
			g.Go(func() error { return fn(p, p.part(i)) })
		}
	}
	return g.Wait()
}

// list calls fn for the objects in dir, which may be missing. Other files are counted and left
// alone.
func (s *Store) list(p *place, dir string, fn func(metadata.Ino, Stat)) (strangers int64, err error) {
	err = s.cfg.FS.ReadDir(dir, func(name string, st Stat) {
		n, err := strconv.ParseUint(name, 16, 64)
		if ino := metadata.Ino(n); err == nil && p.path(ino) == filepath.Join(dir, name) {
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

// scan counts the existing objects.
func (s *Store) scan() error {
	var strangers atomic.Int64
	err := s.eachDir(func(p *place, dir string) error {
		n, err := s.list(p, dir, func(_ metadata.Ino, st Stat) {
			s.settle(p, 0, st.Alloc)
			s.count(p, 1)
		})
		strangers.Add(n)
		return err
	})
	if n := strangers.Load(); n > 0 {
		s.cfg.Log.WithField("files", n).Warn("unknown files in the data store are left alone: they take space until the job ends")
	}
	return err
}

// Parts is the number of parts in which objects are listed.
const Parts = 256

// List returns the inodes in one part for which match returns true. part is the last byte of the inode number. Objects
// created meanwhile may be missing.
func (s *Store) List(part uint8, match func(metadata.Ino) bool) ([]metadata.Ino, error) {
	var inos []metadata.Ino
	var errs []error
	for _, p := range s.places {
		_, err := s.list(p, p.part(int(part)), func(ino metadata.Ino, _ Stat) {
			if match(ino) {
				inos = append(inos, ino)
			}
		})
		errs = append(errs, err)
	}
	return inos, errors.Join(errs...)
}

// RemoveAll removes the objects for which match returns true, and returns their number. It continues after an error.
// Objects created meanwhile may stay.
func (s *Store) RemoveAll(match func(metadata.Ino) bool) (int, error) {
	var removed atomic.Int64
	err := s.eachDir(func(p *place, dir string) error {
		var inos []metadata.Ino
		_, err := s.list(p, dir, func(ino metadata.Ino, _ Stat) { inos = append(inos, ino) })
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

// Space returns the quota, limited by the size of the disks, the space in use, and the space that can still be written.
// Spare objects (Spare) and kept ones (AdoptKept) count as free.
func (s *Store) Space(context.Context) (datapath.Space, error) {
	sp, err := s.space()
	if k := s.keptBytes(); err == nil && k > 0 {
		sp.Free, sp.Capacity = sp.Free+k, sp.Capacity+k
		if q := s.cfg.Capacity; q > 0 {
			sp.Capacity = min(sp.Capacity, q)
			sp.Free = max(min(sp.Free, sp.Capacity-s.usage.held.Load()), 0)
		}
	}
	if spare := min(s.spareBytes(), sp.Used); err == nil && spare > 0 {
		sp.Used, sp.Free = sp.Used-spare, sp.Free+spare
	}
	return sp, err
}

// FreeNow returns the bytes that can be written without removing spare or kept objects.
func (s *Store) FreeNow() (int64, error) {
	sp, err := s.space()
	return sp.Free, err
}

func (s *Store) space() (datapath.Space, error) {
	sp := datapath.Space{Capacity: s.cfg.Capacity, Used: max(s.usage.used.Load(), 0), Objects: s.usage.objects.Load()}
	free, err := s.diskFree()
	if err != nil {
		return sp, err
	}
	sp.Free = free
	if sp.Capacity > 0 {
		sp.Free = max(min(free, sp.Capacity-s.usage.held.Load()), 0)
	}
	if most := sp.Used + free; sp.Capacity == 0 || sp.Capacity > most {
		sp.Capacity = most
	}
	return sp, nil
}

// diskFree sums the free space of the disks, counting each disk once.
func (s *Store) diskFree() (int64, error) {
	var errs []error
	free, seen := int64(0), map[*disk]bool{}
	for _, p := range s.places {
		if seen[p.disk] {
			continue
		}
		seen[p.disk] = true
		n, err := p.disk.free()
		free, errs = free+n, append(errs, err)
	}
	return free, errors.Join(errs...)
}

// Room reports whether the disk of the first store directory has at least half of Config.Reserve
// free.
func (s *Store) Room() bool {
	d := s.places[0].disk
	now, err := s.cfg.FS.Disk(d.dir)
	return err == nil && now.Free >= d.keep/2
}
