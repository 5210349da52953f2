// Package chunkstore keeps one node's share of all file data on its local
// disks. Its one idea is that an object is one plain file under a name that is
// computed from the inode number, so that a restart needs no index, a file
// descriptor can be handed to the kernel (sendfile, FUSE passthrough), and
// removing is unlink.
//
//	<store directory>/objects/<last byte of the ino, in hex>/<ino, in 16 hex digits>
//
// Of several store directories (disks), a hash of the inode number picks one.
// Holes stay sparse; a hole and what lies behind the end read as zeros and
// nothing. At most Config.MaxOpen descriptors are open, whatever the users
// hold open.
//
// The quota is counted in bytes that are allocated on the disk, holes left
// out; see usage. What was there before a restart is found by a scan.
//
// It does not know files, layouts or other nodes, and it does not check
// content: checksums are the business of stage-in.
//
// Locks, in the order in which they are taken:
//
//	object.mu
//	    object.countMu
//	table.mu
//	object.openMu
package chunkstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// Config says where and how much a Store keeps.
type Config struct {
	Dirs     []string // store directories, one for each disk
	Capacity int64    // bytes, the quota of all directories together; 0 is what the disks have
	MaxOpen  int      // descriptors; 0 is 1024
	FS       FS       // nil is the machine's own
	Log      *logrus.Entry
}

func (c *Config) validate() error {
	var errs []error
	if len(c.Dirs) == 0 {
		errs = append(errs, errors.New("no store directory"))
	}
	if c.Capacity < 0 {
		errs = append(errs, fmt.Errorf("capacity %d is negative", c.Capacity))
	}
	if c.MaxOpen < 0 {
		errs = append(errs, fmt.Errorf("%d open descriptors", c.MaxOpen))
	}
	if c.MaxOpen == 0 {
		c.MaxOpen = 1024
	}
	if c.FS == nil {
		c.FS = osFS{}
	}
	if c.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		c.Log = logrus.NewEntry(l)
	}
	return errors.Join(errs...)
}

// Store is a node's objects.
type Store struct {
	cfg   Config
	table *table
	usage usage
}

var (
	_ datapath.Store  = (*Store)(nil)
	_ datapath.Opener = (*Store)(nil)
)

// Open makes the directories where they are missing and counts what is there.
func Open(cfg Config) (*Store, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg}
	s.usage.quota = cfg.Capacity
	s.table = newTable(cfg.MaxOpen, s.openObject)
	if err := s.scan(); err != nil {
		return nil, err
	}
	cfg.Log.WithFields(logrus.Fields{"dirs": cfg.Dirs, "objects": s.usage.objects.Load(), "used": s.usage.used.Load()}).Debug("data store open")
	return s, nil
}

// Close waits for the calls in progress. Later ones get ESHUTDOWN.
func (s *Store) Close() error { return s.table.close() }

// path is the name of ino's object.
func (s *Store) path(ino metadata.Ino) string {
	x := uint64(ino) * 0x9e3779b97f4a7c15 >> 32
	dir := s.cfg.Dirs[x%uint64(len(s.cfg.Dirs))]
	return filepath.Join(dir, objectsDir, fmt.Sprintf("%02x", uint8(ino)), fmt.Sprintf("%016x", uint64(ino)))
}

// openObject sets o.file and o.alloc; o.openMu is held.
func (s *Store) openObject(o *object, create bool) error {
	f, made, err := openFile(s.cfg.FS, s.path(o.ino), create)
	if err != nil {
		return err
	}
	if made {
		s.usage.objects.Add(1)
	} else {
		st, err := f.Stat()
		if err != nil {
			_ = f.Close() // nothing was written by it
			return err
		}
		o.alloc = st.Alloc // nobody else has o yet
	}
	o.file = f
	return nil
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

// useAlone calls fn with ino's object while nobody else uses it.
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

// with calls try with ino's object, again with a fresh one if it was removed meanwhile.
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
		n, err = o.file.ReadAt(p, off)
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
	if err := s.writeAt(ctx, ino, p, off); err != nil {
		return fmt.Errorf("object %v: write at %d: %w", ino, off, err)
	}
	return nil
}

func (s *Store) writeAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
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
	if err := s.usage.reserve(need); err != nil {
		return s.overwrite(ctx, ino, p, off, need)
	}
	tried := false
	err := s.use(ctx, ino, true, func(o *object) error {
		tried = true
		return s.writeReserved(o, p, off, need)
	})
	if !tried {
		s.usage.settle(need, 0)
	}
	if errors.Is(err, fs.ErrNotExist) { // the directory is gone
		return fmt.Errorf("%v: %w", err, syscall.EIO)
	}
	return err
}

// overwrite writes where the quota cannot hold all of p once more: it needs
// space only for the holes in the range.
func (s *Store) overwrite(ctx context.Context, ino metadata.Ino, p []byte, off, most int64) error {
	err := s.use(ctx, ino, false, func(o *object) error {
		start := off &^ (pageSize - 1)
		need, err := o.file.Holes(start, most)
		if err != nil {
			return err
		}
		need = pages(need)
		if err := s.usage.reserve(need); err != nil {
			return err
		}
		return s.writeReserved(o, p, off, need)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return syscall.ENOSPC // a new object needs it all
	}
	return err
}

// writeReserved writes p and settles the reservation.
func (s *Store) writeReserved(o *object, p []byte, off, reserved int64) error {
	err := writeAll(o.file, p, off)
	o.countMu.Lock()
	defer o.countMu.Unlock()
	st, serr := o.file.Stat()
	if serr != nil {
		st.Alloc = o.alloc + reserved // at most that
	}
	s.usage.settle(reserved, st.Alloc-o.alloc)
	o.alloc = st.Alloc
	return errors.Join(err, serr)
}

// writeAll goes on after a short write; one that gets nowhere is EIO.
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

// Truncate cuts ino's object to size bytes; a shorter one is left alone.
func (s *Store) Truncate(ctx context.Context, ino metadata.Ino, size int64) error {
	if size < 0 {
		return wrap("truncate", ino, syscall.EINVAL)
	}
	err := s.useAlone(ctx, ino, func(o *object) error {
		st, err := o.file.Stat()
		if err != nil || st.Size <= size {
			return err
		}
		if err := o.file.Truncate(size); err != nil {
			return err
		}
		return s.recount(o)
	})
	return wrap("truncate", ino, err)
}

// recount counts what o takes now.
func (s *Store) recount(o *object) error {
	st, err := o.file.Stat()
	if err != nil {
		return err
	}
	o.countMu.Lock()
	defer o.countMu.Unlock()
	s.usage.settle(0, st.Alloc-o.alloc)
	o.alloc = st.Alloc
	return nil
}

// Remove removes ino's object; it is no error if there is none.
func (s *Store) Remove(ctx context.Context, ino metadata.Ino) error {
	err := s.useAlone(ctx, ino, func(o *object) error {
		if err := s.cfg.FS.Remove(s.path(ino)); err != nil {
			return err
		}
		o.gone = true
		o.countMu.Lock()
		s.usage.settle(0, -o.alloc)
		o.countMu.Unlock()
		s.usage.objects.Add(-1)
		s.table.detach(o)
		return nil
	})
	return wrap("remove", ino, err)
}

// wrap says what err, if any, happened to; an object that is not there is fine.
func wrap(op string, ino metadata.Ino, err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("object %v: %s: %w", ino, op, err)
}

// Open opens the file of ino's object for reading: what is written must go
// through WriteAt, which counts it. The caller closes it.
func (s *Store) Open(ino metadata.Ino) (*os.File, error) {
	f, err := os.Open(s.path(ino))
	if err != nil {
		return nil, fmt.Errorf("object %v: %w", ino, err)
	}
	return f, nil
}
