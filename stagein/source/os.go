package source

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
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
	f := osFile{os.NewFile(uintptr(fd), path)}
	info, err := f.Stat()
	if err == nil && !info.Is(TypeRegular) {
		err = syscall.EINVAL
	}
	if err != nil {
		_ = f.Close() // nothing was read
		return nil, err
	}
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

type osFile struct{ *os.File }

// Stat hides os.File's.
func (f osFile) Stat() (Info, error) {
	return stat(int(f.Fd()), "", unix.AT_EMPTY_PATH)
}

var _ io.ReaderAt = osFile{}

func infoOf(st *unix.Statx_t) Info {
	return Info{
		Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid, Nlink: uint64(st.Nlink), Size: int64(st.Size),
		Mtime: metadata.Time(st.Mtime.Sec*1e9 + int64(st.Mtime.Nsec)), Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino,
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
