package chunkstore

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/datapath"
)

var ctx = context.Background()

// faultFS fails the operations that its fault function selects, and counts descriptors.
type faultFS struct {
	FS
	fault   func(op string, n int) (int, error) // for a write, also how much of it is done; nil means no fault
	openNow atomic.Int64
	most    atomic.Int64
}

func (f *faultFS) try(op string, n int) (int, error) {
	if f.fault == nil {
		return n, nil
	}
	return f.fault(op, n)
}

func (f *faultFS) Open(path string, flags int) (File, error) {
	if _, err := f.try("open", 0); err != nil {
		return nil, err
	}
	file, err := f.FS.Open(path, flags)
	if err != nil {
		return nil, err
	}
	n := f.openNow.Add(1)
	for m := f.most.Load(); n > m && !f.most.CompareAndSwap(m, n); m = f.most.Load() {
	}
	return &faultFile{file, f}, nil
}

func (f *faultFS) Remove(path string) error {
	if _, err := f.try("remove", 0); err != nil {
		return err
	}
	return f.FS.Remove(path)
}

func (f *faultFS) ReadDir(dir string, fn func(string, Stat)) error {
	if _, err := f.try("readdir", 0); err != nil {
		return err
	}
	return f.FS.ReadDir(dir, fn)
}

func (f *faultFS) Disk(dir string) (Disk, error) {
	if _, err := f.try("disk", 0); err != nil {
		return Disk{}, err
	}
	return f.FS.Disk(dir)
}

func (f *faultFS) Mkdir(dir string) error {
	if _, err := f.try("mkdir", 0); err != nil {
		return err
	}
	return f.FS.Mkdir(dir)
}

func (f *faultFS) MkdirApart(dir string) error {
	if _, err := f.try("mkdir", 0); err != nil {
		return err
	}
	return f.FS.MkdirApart(dir)
}

type faultFile struct {
	File
	fs *faultFS
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if n, err := f.fs.try("read", len(p)); err != nil {
		return n, err
	}
	return f.File.ReadAt(p, off)
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.fs.try("write", len(p))
	if n > 0 {
		if n, werr := f.File.WriteAt(p[:n], off); werr != nil {
			return n, werr
		}
	}
	return n, err
}

func (f *faultFile) Stat() (Stat, error) {
	if _, err := f.fs.try("stat", 0); err != nil {
		return Stat{}, err
	}
	return f.File.Stat()
}

func (f *faultFile) Truncate(size int64) error {
	if _, err := f.fs.try("truncate", 0); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultFile) Allocate(off, n int64) error {
	done, err := f.fs.try("allocate", int(n))
	if done > 0 {
		if aerr := f.File.Allocate(off, int64(done)); aerr != nil {
			return aerr
		}
	}
	return err
}

func (f *faultFile) Punch(off, n int64) error {
	if _, err := f.fs.try("punch", 0); err != nil {
		return err
	}
	return f.File.Punch(off, n)
}

func (f *faultFile) Data(off int64) (datapath.Extent, error) {
	if _, err := f.fs.try("data", 0); err != nil {
		return datapath.Extent{}, err
	}
	return f.File.Data(off)
}

func (f *faultFile) Sync() error {
	if _, err := f.fs.try("sync", 0); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultFile) Close() error {
	f.fs.openNow.Add(-1)
	return f.File.Close()
}

// failing fails every operation called op.
func failing(op string, done int, err error) func(string, int) (int, error) {
	return func(o string, n int) (int, error) {
		if o == op {
			return done, err
		}
		return n, nil
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(string, int) (int, error)
		call  func(*Store) error
		want  syscall.Errno
	}{
		{"write EIO", failing("write", 0, syscall.EIO), over, syscall.EIO},
		{"write ENOSPC", failing("write", 0, syscall.ENOSPC), grow, syscall.ENOSPC},
		{"write half, then ENOSPC", failing("write", 5000, syscall.ENOSPC), grow, syscall.ENOSPC},
		{"write nothing, no error", failing("write", 0, nil), grow, syscall.EIO},
		{"allocate half, then ENOSPC", failing("allocate", 20_000, syscall.ENOSPC), func(s *Store) error {
			return s.Allocate(ctx, ino, 8192, 50_000)
		}, syscall.ENOSPC},
		{"punch EIO", failing("punch", 0, syscall.EIO), func(s *Store) error { return s.Punch(ctx, ino, 0, 10) }, syscall.EIO},
		{"data EIO", failing("data", 0, syscall.EIO), func(s *Store) error { _, err := s.Data(ctx, ino, 0); return err }, syscall.EIO},
		{"open EMFILE", failing("open", 0, syscall.EMFILE), fresh, syscall.EMFILE},
		{"open ENOENT", failing("open", 0, syscall.ENOENT), fresh, syscall.EIO},
		{"stat of a new object", failing("stat", 0, syscall.EIO), fresh, syscall.EIO},
		{"read EIO", failing("read", 0, syscall.EIO), func(s *Store) error {
			n, err := s.ReadAt(ctx, ino, make([]byte, 10), 0)
			if n != 0 {
				return errors.New("bytes with an error")
			}
			return err
		}, syscall.EIO},
		{"sync EIO", failing("sync", 0, syscall.EIO), func(s *Store) error { return s.Sync(ctx, ino) }, syscall.EIO},
		{"remove EIO", failing("remove", 0, syscall.EIO), func(s *Store) error { return s.Remove(ctx, ino) }, syscall.EIO},
		{"truncate EIO", failing("truncate", 0, syscall.EIO), func(s *Store) error { return s.Truncate(ctx, ino, 1) }, syscall.EIO},
		{"remove all EIO", failing("readdir", 0, syscall.EIO), func(s *Store) error { _, err := s.RemoveAll(nil); return err }, syscall.EIO},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := &faultFS{FS: osFS{}}
			s := open(t, Config{FS: fs, Capacity: 1 << 20})
			write(t, s, ino, 8192, 0)
			fs.fault = c.fault
			wantErr(t, c.name, c.call(s), c.want)
			fs.fault = nil
			if r := s.usage.reserved.Load(); r != 0 {
				t.Errorf("%d bytes stay reserved", r)
			}
			if c.name == "stat of a new object" {
				write(t, s, ino+1, 10, 0) // is counted anew
			}
			used, objects := onDisk(t, s)
			wantSpace(t, s, used, objects)
			write(t, s, ino, 8192, 0)
			if err := s.Remove(t.Context(), ino); err != nil {
				t.Error(err)
			}
			if err := s.Remove(t.Context(), ino+1); err != nil {
				t.Error(err)
			}
			wantSpace(t, s, 0, 0)
			if n := fs.openNow.Load(); n != 0 {
				t.Errorf("%d descriptors of removed objects are open", n)
			}
		})
	}
}

func over(s *Store) error  { return s.WriteAt(ctx, ino, make([]byte, 100), 0) }
func grow(s *Store) error  { return s.WriteAt(ctx, ino, make([]byte, 50_000), 8192) }
func fresh(s *Store) error { return s.WriteAt(ctx, ino+1, make([]byte, 50_000), 0) }

// TestShortWrite: a write that stopped early without an error is continued.
func TestShortWrite(t *testing.T) {
	fs := &faultFS{FS: osFS{}}
	s := open(t, Config{FS: fs})
	fs.fault = func(op string, n int) (int, error) {
		if op == "write" {
			n = min(n, 7)
		}
		return n, nil
	}
	if err := s.WriteAt(ctx, ino, []byte("a write in several pieces"), 3); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 100)
	if n, err := s.ReadAt(ctx, ino, p, 3); err != nil || string(p[:n]) != "a write in several pieces" {
		t.Errorf("ReadAt = %q, %v", p[:n], err)
	}
}

// TestOpenFails opens a store whose directories cannot be created or read.
func TestOpenFails(t *testing.T) {
	for _, op := range []string{"mkdir", "readdir"} {
		fs := &faultFS{FS: osFS{}, fault: failing(op, 0, syscall.EROFS)}
		_, err := Open(Config{Dirs: []string{t.TempDir()}, FS: fs})
		wantErr(t, "Open where "+op+" fails", err, syscall.EROFS)
	}
}
