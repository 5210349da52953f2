package source

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// OS is the filesystem of this machine, accessed as this process.
type OS struct{}

var _ FS = OS{}

// Open implements FS.
func (OS) Open(path string) (File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	f := &osFile{fd: fd, path: path}
	f.uses.Store(1)
	info, err := f.Stat()
	if err == nil && !info.Is(TypeRegular) {
		err = syscall.EINVAL
	}
	if err != nil {
		_ = f.Close() // nothing was read
		return nil, err
	}
	// Callers read large pieces and have their own read-ahead (Region). The kernel's read-ahead would often read
	// another node's part, so that it would be read twice.
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM) // best effort
	return f, nil
}

// Lstat implements FS.
func (OS) Lstat(path string) (Info, error) {
	return stat(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
}

// wanted are the fields of Info. It omits the access time: a client that has read from the file would have to ask
// the server for it.
const wanted = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_UID | unix.STATX_GID |
	unix.STATX_MTIME | unix.STATX_INO | unix.STATX_SIZE

func stat(fd int, path string, flags int) (Info, error) {
	var st unix.Statx_t
	for {
		err := unix.Statx(fd, path, flags, wanted, &st)
		if err == nil {
			return infoOf(&st), nil
		}
		if err != unix.EINTR {
			return Info{}, err
		}
	}
}

// Readlink implements FS.
func (OS) Readlink(path string) (string, error) { return os.Readlink(path) }

// ReadDir implements FS.
func (OS) ReadDir(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	_ = f.Close() // read only
	return names, err
}

// osFile is a reference-counted descriptor. An os.File takes six more system calls, to find that a file cannot be
// polled.
type osFile struct {
	fd     int
	path   string
	exact  atomic.Bool // see Exact
	closed atomic.Bool
	uses   atomic.Int64 // reads in progress, plus one until it is closed
}

var _ File = (*osFile)(nil)

// use keeps the descriptor open until done.
func (f *osFile) use() error {
	for {
		n := f.uses.Load()
		if n == 0 || f.closed.Load() {
			return &fs.PathError{Op: "read", Path: f.path, Err: fs.ErrClosed}
		}
		if f.uses.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

func (f *osFile) done() error {
	if f.uses.Add(-1) > 0 {
		return nil
	}
	return unix.Close(f.fd)
}

// Close does not interrupt reads in progress; the last one closes the descriptor.
func (f *osFile) Close() error {
	if f.closed.Swap(true) {
		return &fs.PathError{Op: "close", Path: f.path, Err: fs.ErrClosed}
	}
	return f.done()
}

// Stat implements File.
func (f *osFile) Stat() (Info, error) {
	if err := f.use(); err != nil {
		return Info{}, err
	}
	defer f.done() // read only
	return stat(f.fd, "", unix.AT_EMPTY_PATH)
}

// ReadAt implements io.ReaderAt.
func (f *osFile) ReadAt(p []byte, off int64) (n int, err error) {
	if err := f.use(); err != nil {
		return 0, err
	}
	defer f.done() // read only
	for n < len(p) {
		exact := f.exact.Load()
		k, err := unix.Pread(f.fd, p[n:], off+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL) && exact:
			f.inexact()
		case err != nil:
			return n, &fs.PathError{Op: "read", Path: f.path, Err: err}
		case k == 0:
			return n, io.EOF
		}
		n += max(k, 0)
	}
	return n, nil
}

func infoOf(st *unix.Statx_t) Info {
	return Info{
		Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid, Nlink: uint64(st.Nlink), Size: int64(st.Size),
		Mtime: ClampTime(st.Mtime.Sec, int64(st.Mtime.Nsec)), Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino,
	}
}

// maxLinks bounds the symbolic links that Resolve follows, as in the kernel.
const maxLinks = 40

// Resolve follows symbolic links in the last component of path, so that Open accepts the result.
func Resolve(fs FS, path string) (string, Info, error) {
	for range maxLinks {
		info, err := fs.Lstat(path)
		if err != nil {
			return "", Info{}, fmt.Errorf("%s: %w", path, err)
		}
		if !info.Is(TypeSymlink) {
			return path, info, nil
		}
		target, err := fs.Readlink(path)
		if err != nil {
			return "", Info{}, fmt.Errorf("%s: %w", path, err)
		}
		if !filepath.IsAbs(target) {
			// Not Join, which would shorten "link/.." where the kernel follows the link.
			target = strings.TrimSuffix(filepath.Dir(path), "/") + "/" + target
		}
		path = target
	}
	return "", Info{}, fmt.Errorf("%s: %w", path, syscall.ELOOP)
}
