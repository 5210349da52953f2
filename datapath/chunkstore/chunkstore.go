package chunkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// Config configures a Store.
type Config struct {
	Dirs     []string // store directories, one for each disk
	Capacity int64    // quota of all directories together, in bytes; 0: the size of the disks
	Reserve  int64    // bytes that stay free on the disk of the first directory; at most half of that disk
	MaxOpen  int      // descriptors; 0 is 1024
	Sums     int64    // bytes of memory for checksums of scratch objects; 0 is 64 MiB, negative none
	FS       FS       // nil: this machine's
	Log      *logrus.Entry
}

func (c *Config) validate() error {
	var errs []error
	if len(c.Dirs) == 0 {
		errs = append(errs, errors.New("no store directory"))
	}
	if c.Capacity < 0 || c.Reserve < 0 {
		errs = append(errs, fmt.Errorf("capacity %d or reserve %d is negative", c.Capacity, c.Reserve))
	}
	if c.MaxOpen < 0 {
		errs = append(errs, fmt.Errorf("%d open descriptors", c.MaxOpen))
	}
	c.MaxOpen = cmp.Or(c.MaxOpen, 1024)
	c.Sums = cmp.Or(c.Sums, 64<<20)
	if c.FS == nil {
		c.FS = osFS{}
	}
	c.Log = cmp.Or(c.Log, logrus.NewEntry(&logrus.Logger{Out: io.Discard}))
	return errors.Join(errs...)
}

// Store holds the objects of a node.
type Store struct {
	cfg    Config
	places []*place
	table  *table
	usage  usage
	sums   *sums // nil: none
	spare  atomic.Pointer[Spare]
	kept   kept
	linked atomic.Bool // links to whole objects exist, or existed
}

var (
	_ datapath.Store  = (*Store)(nil)
	_ datapath.Opener = (*Store)(nil)
)

// Open creates missing directories and counts the existing objects.
func Open(cfg Config) (*Store, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg}
	s.usage.quota = cfg.Capacity
	if cfg.Sums > 0 {
		s.sums = newSums(cfg.Sums)
	}
	s.table = newTable(cfg.MaxOpen, s.openObject)
	var err error
	if s.places, err = openPlaces(cfg.FS, cfg.Dirs, cfg.Reserve); err != nil {
		return nil, err
	}
	if err := s.openWhole(); err != nil {
		return nil, err
	}
	if err := s.scan(); err != nil {
		return nil, err
	}
	s.openKept()
	cfg.Log.WithFields(logrus.Fields{"dirs": cfg.Dirs, "objects": s.usage.objects.Load(), "used": s.usage.used.Load()}).Debug("data store open")
	return s, nil
}

// Close waits for calls in progress. Later calls get ESHUTDOWN.
func (s *Store) Close() error { return s.table.close() }

// openObject sets o.file, o.place, o.sums and o.alloc; o.openMu is held.
func (s *Store) openObject(o *object, create bool) error {
	var made bool
	var f File
	var p *place
	var err error
	if create {
		f, p, made, err = s.openOrMake(o.ino)
	} else {
		f, p, err = s.find(o.ino)
	}
	if err != nil {
		return err
	}
	if made {
		s.count(p, 1)
	} else {
		st, err := f.Stat()
		if err != nil {
			_ = f.Close() // nothing was written
			return err
		}
		o.alloc = st.Alloc // o is not shared yet
	}
	o.file, o.place, o.sums = f, p, s.sums.of(o.ino)
	return nil
}

// count counts objects that were created or removed.
func (s *Store) count(p *place, n int64) {
	s.usage.objects.Add(n)
	p.objects.Add(n)
}

// settle replaces a reservation of n bytes by the bytes that were actually taken.
func (s *Store) settle(p *place, n, taken int64) {
	s.usage.settle(n, taken)
	p.used.Add(taken)
	p.disk.gave(n)
}

// use calls fn with ino's object, shared with other calls.
func (s *Store) use(ctx context.Context, ino metadata.Ino, create bool, fn func(*object) error) error {
	return s.with(ctx, ino, create, func(o *object) (bool, error) {
		o.mu.RLock()
		defer o.mu.RUnlock()
		if o.gone {
			return false, nil
		}
		return true, fn(o)
	})
}

// useAlone calls fn with exclusive use of ino's object.
func (s *Store) useAlone(ctx context.Context, ino metadata.Ino, fn func(*object) error) error {
	return s.with(ctx, ino, false, func(o *object) (bool, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.gone {
			return false, nil
		}
		return true, fn(o)
	})
}

// with calls try with ino's object, and again with a fresh one if it was removed meanwhile.
func (s *Store) with(ctx context.Context, ino metadata.Ino, create bool, try func(*object) (bool, error)) error {
	for {
		o, err := s.table.acquire(ctx, ino, create)
		if err != nil {
			return err
		}
		done, err := try(o)
		if !done {
			s.table.detach(o)
		}
		s.table.release(o)
		if done {
			return err
		}
	}
}

// ReadAt fills p from offset off of ino's object.
func (s *Store) ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("object %v: read at %d: %w", ino, off, syscall.EINVAL)
	}
	p = p[:min(int64(len(p)), math.MaxInt64-off)]
	n := 0
	err := s.use(ctx, ino, false, func(o *object) (err error) {
		n, err = s.readObject(o, p, off)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("object %v: read at %d: %w", ino, off, err)
	}
	return n, nil
}

// WriteAt writes all of p at offset off of ino's object, or fails.
func (s *Store) WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	if err := s.writeAt(ctx, ino, p, off, s.spend); err != nil {
		return fmt.Errorf("object %v: write at %d: %w", ino, off, err)
	}
	return nil
}

// spender is the signature of spend and trySpend.
type spender func(ctx context.Context, ino metadata.Ino, off, most int64, fn func(*object) error) error

func (s *Store) writeAt(ctx context.Context, ino metadata.Ino, p []byte, off int64, spend spender) error {
	n := int64(len(p))
	switch {
	case off < 0:
		return syscall.EINVAL
	case off > math.MaxInt64-pageSize-n:
		return syscall.EFBIG
	}
	need := spread(off, n)
	if n == 0 {
		need = 0
	}
	return spend(ctx, ino, off, need, func(o *object) error {
		return s.change(o, p, off, n, func() error { return writeAll(o.file, p, off) })
	})
}

// trySpend runs fn with ino's object; fn takes at most most bytes of space in the pages from off on. A missing object
// is created if there is room for most bytes. With less quota or disk space, fn still runs if there is room for the
// holes in the range.
func (s *Store) trySpend(ctx context.Context, ino metadata.Ino, off, most int64, fn func(*object) error) error {
	room := s.usage.reserve(most) == nil
	reserved := room
	err := s.use(ctx, ino, room, func(o *object) error {
		if reserved {
			reserved = false // settled below
			if o.place.disk.take(most) == nil {
				return s.grow(o, most, fn)
			}
			s.usage.settle(most, 0)
		}
		return s.fill(o, off, most, fn)
	})
	if reserved {
		s.usage.settle(most, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if !room {
			return syscall.ENOSPC // a new object needs all of it
		}
		return fmt.Errorf("%v: %w", err, syscall.EIO) // the directory was removed
	}
	return err
}

// fill runs fn if there is room for the holes in the range.
func (s *Store) fill(o *object, off, most int64, fn func(*object) error) error {
	need, err := o.lacks(off&^(pageSize-1), most)
	if err != nil {
		return err
	}
	if err := s.usage.reserve(need); err != nil {
		return err
	}
	if err := o.place.disk.take(need); err != nil {
		s.usage.settle(need, 0)
		return err
	}
	return s.grow(o, need, fn)
}

// lacks returns how much more space the n bytes at off may take. Allocated but unwritten space looks like a hole, but
// is already counted.
func (o *object) lacks(off, n int64) (int64, error) {
	holes, err := o.file.Holes(off, n)
	if err != nil || holes == 0 {
		return 0, err
	}
	st, err := o.file.Stat()
	if err != nil {
		return 0, err
	}
	all, err := o.file.Holes(0, st.Size)
	if err != nil {
		return 0, err
	}
	unwritten := max(st.Alloc-pages(st.Size-min(all, st.Size)), 0)
	return max(pages(holes)-unwritten, 0), nil
}

// grow runs fn, which takes space for o, and settles the reservation.
func (s *Store) grow(o *object, reserved int64, fn func(*object) error) error {
	err := fn(o)
	o.countMu.Lock()
	defer o.countMu.Unlock()
	st, serr := o.file.Stat()
	if serr != nil {
		st.Alloc = o.alloc + reserved // the upper bound
	}
	s.settle(o.place, reserved, st.Alloc-o.alloc)
	o.alloc = st.Alloc
	return errors.Join(err, serr)
}

// writeAll writes all of p, continuing after short writes; a write without progress is EIO.
func writeAll(f File, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := f.WriteAt(p, off)
		if err != nil {
			return err
		}
		if n <= 0 || n > len(p) {
			return fmt.Errorf("%d of %d bytes written: %w", n, len(p), syscall.EIO)
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// Sync makes ino's object durable.
func (s *Store) Sync(ctx context.Context, ino metadata.Ino) error {
	err := s.use(ctx, ino, false, func(o *object) error { return o.file.Sync() })
	return wrap("sync", ino, err)
}

// Truncate cuts ino's object to size bytes; a shorter one stays as it is.
func (s *Store) Truncate(ctx context.Context, ino metadata.Ino, size int64) error {
	if size < 0 {
		return wrap("truncate", ino, syscall.EINVAL)
	}
	err := s.useAlone(ctx, ino, func(o *object) error {
		st, err := o.file.Stat()
		if err != nil || st.Size <= size {
			return err
		}
		if err := s.cut(o, size, func() error { return o.file.Truncate(size) }); err != nil {
			return err
		}
		return s.recount(o)
	})
	return wrap("truncate", ino, err)
}

// recount updates the space that o takes.
func (s *Store) recount(o *object) error {
	st, err := o.file.Stat()
	if err != nil {
		return err
	}
	o.countMu.Lock()
	defer o.countMu.Unlock()
	s.settle(o.place, 0, st.Alloc-o.alloc)
	o.alloc = st.Alloc
	return nil
}

// Remove removes ino's object, if there is one.
func (s *Store) Remove(ctx context.Context, ino metadata.Ino) error {
	err := s.useAlone(ctx, ino, func(o *object) error {
		s.forgetSums(o)
		if err := s.unlink(o.place, ino); err != nil {
			return err
		}
		if err := s.cfg.FS.Remove(o.place.path(ino)); err != nil {
			return err
		}
		o.gone = true
		o.countMu.Lock()
		s.settle(o.place, 0, -o.alloc)
		o.countMu.Unlock()
		s.count(o.place, -1)
		s.table.detach(o)
		return nil
	})
	return wrap("remove", ino, err)
}

// wrap adds the op and the inode to err; a missing object is no error.
func wrap(op string, ino metadata.Ino, err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("object %v: %s: %w", ino, op, err)
}

// Open opens the file of ino's object for reading: writes must go through WriteAt, which counts
// them. The caller closes it.
func (s *Store) Open(ino metadata.Ino) (*os.File, error) {
	var f *os.File
	err := s.inOrder(ino, func(p *place) error {
		path := p.path(ino)
		fd, err := openFile(path, os.O_RDONLY)
		if err == nil {
			f = os.NewFile(uintptr(fd), path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("object %v: %w", ino, err)
	}
	return f, nil
}
