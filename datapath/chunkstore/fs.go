package chunkstore

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath"
)

// FS is the filesystem below the store. Tests inject faults here; Machine is the real one. Errors wrap errnos.
type FS interface {
	// Open opens the file at path for reading and writing, with further flags of open(2).
	Open(path string, flags int) (File, error)
	Remove(path string) error
	Rename(from, to string) error // EEXIST if to exists
	Mkdir(path string) error      // with its parents; no error if it exists
	// MkdirApart is Mkdir for a directory of very many files. On a filesystem where it matters, the directory is placed
	// where no files were removed recently.
	MkdirApart(path string) error
	// ReadDir calls fn for each file in dir.
	ReadDir(dir string, fn func(name string, st Stat)) error
	// Disk returns the disk that holds dir.
	Disk(dir string) (Disk, error)
}

// File is an open object. Its methods may be called concurrently.
type File interface {
	ReadAt(p []byte, off int64) (int, error) // as io.ReaderAt
	WriteAt(p []byte, off int64) (int, error)
	Truncate(size int64) error
	Sync() error
	Stat() (Stat, error)
	// Allocate and Punch are fallocate(2): Allocate extends a shorter file, Punch keeps its length.
	Allocate(off, n int64) error
	Punch(off, n int64) error
	// Data returns the first range of data that ends after off.
	Data(off int64) (datapath.Extent, error)
	// Holes returns how many of the n bytes from off on have no space on the disk, or more if the filesystem cannot
	// tell.
	Holes(off, n int64) (int64, error)
	Close() error
}

// Stat is the size of a file and its space on the disk, in bytes.
type Stat struct {
	Size  int64
	Alloc int64
}

// Disk is a disk's identity and free space.
type Disk struct {
	ID   uint64
	Size int64 // bytes
	Free int64 // bytes that this user may still write
}

// osFS is the filesystem of this machine.
type osFS struct{}

// Machine is the filesystem of this machine.
var Machine FS = osFS{}

// Open makes no os.File, whose finalizer costs as much as the lookup of a small file.
func (osFS) Open(path string, flags int) (File, error) {
	fd, err := openFile(path, os.O_RDWR|flags)
	if err != nil {
		return nil, err
	}
	return &osFile{fd, path}, nil
}

// openFile skips the polling setup of os.OpenFile, which takes five system calls and is useless for a file on a disk.
func openFile(path string, flags int) (fd int, err error) {
	for {
		fd, err = unix.Open(path, unix.O_CLOEXEC|flags, 0o600)
		switch err {
		case nil:
			return fd, nil
		case unix.EINTR:
		default:
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

func (osFS) Remove(path string) error { return os.Remove(path) }

func (osFS) Rename(from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// Mkdir creates the parents only if necessary.
func (osFS) Mkdir(path string) error {
	if unix.Mkdir(path, 0o700) == nil {
		return nil
	}
	return os.MkdirAll(path, 0o700)
}

const (
	// topDir marks a directory of ext4 as a top directory: its subdirectories are distributed over
	// the disk by name (chattr +T).
	topDir = 0x20000
	// apartTries is how many directories are tried until creating a file there takes less than
	// quickMake; probes is how many files are created in each.
	apartTries = 8
	quickMake  = 100 * time.Microsecond
	probes     = 3
)

// MkdirApart implements FS. For minutes after a removal, ext4 checks all recently removed inodes near each new one
// (recently_deleted): after the previous job of a node had removed its files, creating a file took 0.75 ms instead of
// 0.02. The place of a directory below a top directory depends on its name, so MkdirApart tries several unused names
// and keeps the fastest.
func (m osFS) MkdirApart(path string) error {
	parent := filepath.Dir(path)
	if err := m.Mkdir(parent); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil || !markTopDir(parent) {
		return m.Mkdir(path)
	}
	best, least := "", time.Duration(math.MaxInt64)
	for try := 0; try < apartTries && least > quickMake; try++ {
		dir, err := os.MkdirTemp(parent, filepath.Base(path)+".")
		if err != nil {
			return errors.Join(err, removeIf(best))
		}
		took, err := makeTime(dir)
		if err != nil {
			return errors.Join(err, os.RemoveAll(dir), removeIf(best))
		}
		if took < least {
			best, dir, least = dir, best, took
		}
		if err := removeIf(dir); err != nil {
			return err
		}
	}
	if err := unix.Renameat2(unix.AT_FDCWD, best, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE); err != nil {
		return errors.Join(removeIf(best), m.Mkdir(path))
	}
	return nil
}

func removeIf(dir string) error {
	if dir == "" {
		return nil
	}
	return os.Remove(dir)
}

// makeTime creates some files in dir and returns the shortest time that one took.
func makeTime(dir string) (least time.Duration, err error) {
	least = math.MaxInt64
	var names []string
	for i := range probes {
		name := filepath.Join(dir, strconv.Itoa(i))
		began := time.Now()
		fd, err := unix.Open(name, unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return 0, &fs.PathError{Op: "create", Path: name, Err: err}
		}
		least = min(least, time.Since(began))
		_ = unix.Close(fd) // nothing was written
		names = append(names, name)
	}
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	return least, err
}

// markTopDir marks dir as a top directory, which ext4 supports, and reports success.
func markTopDir(dir string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.EXT4_SUPER_MAGIC {
		return false
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) // nothing was written
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	return err == nil && unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|topDir)) == nil
}

func (osFS) ReadDir(dir string, fn func(string, Stat)) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		var st unix.Stat_t
		switch err := unix.Lstat(filepath.Join(dir, e.Name()), &st); err {
		case nil:
			fn(e.Name(), statOf(&st))
		case unix.ENOENT: // removed meanwhile
		default:
			return &fs.PathError{Op: "lstat", Path: filepath.Join(dir, e.Name()), Err: err}
		}
	}
	return nil
}

func (osFS) Disk(dir string) (Disk, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return Disk{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Disk{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return Disk{ID: st.Dev, Size: int64(s.Blocks) * s.Bsize, Free: int64(s.Bavail) * s.Bsize}, nil
}

// osFile is a descriptor. The table guarantees that no descriptor in use is closed.
type osFile struct {
	fd   int
	path string // for errors
}

// do repeats a system call that a signal interrupted: Go's scheduler interrupts long ones.
func (f *osFile) do(op string, call func() error) error {
	for {
		switch err := call(); err {
		case nil:
			return nil
		case unix.EINTR:
		default:
			return &fs.PathError{Op: op, Path: f.path, Err: err}
		}
	}
}

// Fd implements datapath.Descriptor.
func (f *osFile) Fd() uintptr { return uintptr(f.fd) }

func (f *osFile) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		k, err := unix.Pread(f.fd, p[n:], off+int64(n))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return n, &fs.PathError{Op: "read", Path: f.path, Err: err}
		case k == 0:
			return n, io.EOF
		default:
			n += k
		}
	}
	return n, nil
}

func (f *osFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.do("write", func() (err error) {
		n, err = unix.Pwrite(f.fd, p, off)
		return err
	})
	return max(n, 0), err
}

func (f *osFile) Truncate(size int64) error {
	return f.do("truncate", func() error { return unix.Ftruncate(f.fd, size) })
}

func (f *osFile) Sync() error { return f.do("sync", func() error { return unix.Fsync(f.fd) }) }

// Close is not repeated: the descriptor may be in use again by then.
func (f *osFile) Close() error {
	if err := unix.Close(f.fd); err != nil && err != unix.EINTR {
		return &fs.PathError{Op: "close", Path: f.path, Err: err}
	}
	return nil
}

func (f *osFile) Stat() (Stat, error) {
	var st unix.Stat_t
	if err := f.do("stat", func() error { return unix.Fstat(f.fd, &st) }); err != nil {
		return Stat{}, err
	}
	return statOf(&st), nil
}

// statOf excludes space that a filesystem has preallocated after the file's end (XFS, while a file grows): closing the
// file frees it.
func statOf(st *unix.Stat_t) Stat {
	return Stat{Size: st.Size, Alloc: min(pages(st.Size), st.Blocks*512)}
}

func (f *osFile) Allocate(off, n int64) error { return f.fallocate(0, off, n) }

func (f *osFile) Punch(off, n int64) error {
	return f.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

func (f *osFile) fallocate(mode uint32, off, n int64) error {
	return f.do("allocate", func() error { return unix.Fallocate(f.fd, mode, off, n) })
}

// Data moves the offset of the descriptor, which nothing uses.
func (f *osFile) Data(off int64) (datapath.Extent, error) {
	from, err := f.seek(off, unix.SEEK_DATA, math.MaxInt64)
	if err != nil || from == math.MaxInt64 {
		return datapath.NoData, err
	}
	to, err := f.seek(from, unix.SEEK_HOLE, math.MaxInt64)
	return datapath.Extent{From: from, To: to}, err
}

// Holes moves the offset of the descriptor, which nothing uses.
func (f *osFile) Holes(off, n int64) (int64, error) {
	holes, end := int64(0), off+n
	for off < end {
		data, err := f.seek(off, unix.SEEK_DATA, end)
		if err != nil {
			return n, err
		}
		holes += data - off
		if off, err = f.seek(data, unix.SEEK_HOLE, end); err != nil {
			return n, err
		}
	}
	return holes, nil
}

func (f *osFile) seek(off int64, whence int, end int64) (int64, error) {
	if off >= end {
		return end, nil
	}
	at, err := unix.Seek(f.fd, off, whence)
	switch err {
	case nil:
		return min(at, end), nil
	case unix.ENXIO: // no data, or the end of the file
		return end, nil
	}
	return 0, &fs.PathError{Op: "seek", Path: f.path, Err: err}
}
