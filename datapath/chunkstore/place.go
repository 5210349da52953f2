package chunkstore

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// place is one store directory.
type place struct {
	dir  string
	disk *disk // shared by the directories on one disk

	used    atomic.Int64 // bytes that objects take here
	objects atomic.Int64
}

// disk tracks the free space of one disk. It queries the disk now and then, and counts in between.
type disk struct {
	fs   FS
	dir  string // a directory on it
	keep int64  // bytes reserved for other uses

	left    atomic.Int64 // bytes that may be taken before the next query
	pending atomic.Int64 // taken for writes in progress

	mu sync.Mutex // held during a query
}

// stride is the most that is taken between two queries of a disk, since other programs write to it too.
const stride = 64 << 20

// take takes n bytes, or returns ENOSPC. They are returned when the write has finished and the disk counts them.
func (d *disk) take(n int64) error {
	if n == 0 {
		return nil
	}
	if d.left.Add(-n) >= 0 {
		d.pending.Add(n)
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	free, err := d.free()
	if err != nil {
		return err
	}
	if n > free {
		d.left.Store(0)
		return syscall.ENOSPC
	}
	d.left.Store(min(free/4, stride))
	d.pending.Add(n)
	return nil
}

func (d *disk) gave(n int64) { d.pending.Add(-n) }

// free returns how many bytes can be written now, apart from the writes in progress.
func (d *disk) free() (int64, error) {
	now, err := d.fs.Disk(d.dir)
	if err != nil {
		return 0, err
	}
	return max(now.Free-d.keep-d.pending.Load(), 0), nil
}

// openPlaces creates the store directories. On the disk of the first, reserve bytes stay free, or half of the disk if
// that is less.
func openPlaces(f FS, dirs []string, reserve int64) ([]*place, error) {
	disks := map[uint64]*disk{}
	var places []*place
	for i, dir := range dirs {
		if err := f.MkdirApart(filepath.Join(dir, objectsDir)); err != nil {
			return nil, err
		}
		now, err := f.Disk(dir)
		if err != nil {
			return nil, err
		}
		d := disks[now.ID]
		if d == nil {
			d = &disk{fs: f, dir: dir}
			disks[now.ID] = d
		}
		if i == 0 {
			d.keep = min(reserve, now.Size/2)
		}
		places = append(places, &place{dir: filepath.Clean(dir), disk: d})
	}
	return places, nil
}

// part returns the directory of the objects whose last inode byte is i.
func (p *place) part(i int) string { return filepath.Join(p.dir, objectsDir, fmt.Sprintf("%02x", i)) }

// path returns the path of ino's object.
func (p *place) path(ino metadata.Ino) string { return p.named(objectsDir, ino) }

// named returns the path of ino's name below the directory top.
func (p *place) named(top string, ino metadata.Ino) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(ino))
	name := hex.EncodeToString(b[:])
	return p.dir + "/" + top + "/" + name[len(name)-2:] + "/" + name
}

// inOrder calls fn with the places where ino's object may be, until fn returns an error other than ErrNotExist.
func (s *Store) inOrder(ino metadata.Ino, fn func(*place) error) error {
	n := uint64(len(s.places))
	first := uint64(ino) * 0x9e3779b97f4a7c15 >> 32 % n
	err := error(fs.ErrNotExist)
	for i := range n {
		if err = fn(s.places[(first+i)%n]); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// find opens ino's object in the place that has it.
func (s *Store) find(ino metadata.Ino) (file File, at *place, err error) {
	err = s.inOrder(ino, func(p *place) (err error) {
		at = p
		file, err = s.cfg.FS.Open(p.path(ino), 0)
		return err
	})
	return file, at, err
}

// choose picks the place for a new object: among those whose disks have room, the one with the
// fewest bytes, then with the fewest objects.
func (s *Store) choose(ino metadata.Ino) (*place, error) {
	var best *place
	err := s.inOrder(ino, func(p *place) error {
		if len(s.places) > 1 {
			if free, err := p.disk.free(); err != nil {
				return err
			} else if free < minRoom {
				return fs.ErrNotExist // try the next
			}
		}
		if best == nil || p.before(best) {
			best = p
		}
		return fs.ErrNotExist
	})
	switch {
	case best != nil:
		return best, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, syscall.ENOSPC
	}
	return nil, err
}

// minRoom is the free space of a disk below which new objects go to others.
const minRoom = 1 << 20

func (p *place) before(q *place) bool {
	if a, b := p.used.Load(), q.used.Load(); a != b {
		return a < b
	}
	return p.objects.Load() < q.objects.Load()
}

// openOrMake opens or creates ino's object; made means created.
func (s *Store) openOrMake(ino metadata.Ino) (file File, at *place, made bool, err error) {
	if len(s.places) > 1 {
		if file, at, err = s.find(ino); !errors.Is(err, fs.ErrNotExist) {
			return file, at, false, err
		}
	}
	if at, err = s.choose(ino); err != nil {
		return nil, nil, false, err
	}
	file, made, err = makeFile(s.cfg.FS, at.path(ino))
	return file, at, made, err
}

// makeFile opens or creates a file and its directory.
func makeFile(f FS, path string) (file File, made bool, err error) {
	file, err = f.Open(path, os.O_CREATE|os.O_EXCL)
	if errors.Is(err, fs.ErrNotExist) { // the first object of its directory
		if err := f.Mkdir(filepath.Dir(path)); err != nil {
			return nil, false, err
		}
		file, err = f.Open(path, os.O_CREATE|os.O_EXCL)
	}
	if errors.Is(err, fs.ErrExist) {
		file, err = f.Open(path, 0)
		return file, false, err
	}
	return file, err == nil, err
}
