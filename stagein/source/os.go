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

// OS is this machine's filesystem, with the rights of this process.
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
	f.disk = onDisk(fd, info.Dev)
	// Who reads here reads large pieces, and some ahead of himself (Region). What
	// the kernel would read ahead is often another node's, and would be read twice.
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM) // advice
	return f, nil
}

// Lstat implements FS.
func (OS) Lstat(path string) (Info, error) {
	return stat(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
}

// wanted is what Info has. The time of access is not in it: a client's kernel that has
// read of a file does not know that any more, and would ask the server.
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

// osFile is a descriptor and who uses it. An os.File takes six system calls more, to
// find out that a file cannot be polled.
type osFile struct {
	fd     int
	path   string
	disk   bool        // see onDisk
	exact  atomic.Bool // see Exact
	closed atomic.Bool
	uses   atomic.Int64 // reads under way, and one until it is closed
}

var _ File = (*osFile)(nil)

// use has the descriptor stay open until done.
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

// Close lets reads that are under way end.
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
	defer f.done() // it was only read
	return stat(f.fd, "", unix.AT_EMPTY_PATH)
}

// ReadAt implements io.ReaderAt.
func (f *osFile) ReadAt(p []byte, off int64) (n int, err error) {
	if err := f.use(); err != nil {
		return 0, err
	}
	defer f.done() // it was only read
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

// maxLinks is how many symbolic links Resolve follows, as in the kernel.
const maxLinks = 40

// Resolve follows the symbolic links that path itself is, so that Open takes
// the result. Links in the middle of a path are the filesystem's business.
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
			// Not Join, which would cut "link/.." where the kernel goes through the link.
			target = strings.TrimSuffix(filepath.Dir(path), "/") + "/" + target
		}
		path = target
	}
	return "", Info{}, fmt.Errorf("%s: %w", path, syscall.ELOOP)
}
