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
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Info{}, err
	}
	return infoOf(&st), nil
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
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Info{}, err
	}
	return infoOf(&st), nil
}

var _ io.ReaderAt = osFile{}

func infoOf(st *unix.Stat_t) Info {
	return Info{
		Mode: st.Mode, UID: st.Uid, GID: st.Gid, Nlink: uint64(st.Nlink), Size: st.Size,
		Mtime: metadata.Time(st.Mtim.Nano()), Dev: st.Dev, Ino: st.Ino,
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
