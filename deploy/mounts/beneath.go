package mounts

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Beneath returns a handle (O_PATH) of path below the directory dir, for root in a directory of a user. It follows no
// symbolic link and enters no mount, so that it accesses only the filesystem of dir: a filesystem that the user has
// mounted there, and whose server hangs, cannot block the caller. The result may itself be a symbolic link or any other
// file: the caller checks the type before opening it (Reopen).
func Beneath(dir int, path string) (*os.File, error) {
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.6
		fd, err = walkBeneath(dir, path)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// BeneathPath is Beneath for below in path, a directory of a user whose parents belong to root.
func BeneathPath(path, below string) (*os.File, error) {
	above, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer above.Close()
	return Beneath(int(above.Fd()), filepath.Join(filepath.Base(path), below))
}

// Reopen returns the path that opens the file of the handle h.
func Reopen(h *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", h.Fd()) }

// walkBeneath implements openat2 step by step. Opening a handle of a mount sends the mounted filesystem no request.
func walkBeneath(dir int, path string) (fd int, err error) {
	if path == "" {
		return -1, unix.ENOENT
	}
	on, err := mountID(dir)
	if err != nil {
		return -1, err
	}
	if dir, err = unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return -1, err
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." {
			_ = unix.Close(dir) // it was only a handle
			return -1, unix.EXDEV
		}
		fd, err = unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = unix.Close(dir)
		if err != nil {
			return -1, err
		}
		dir = fd
		id, err := mountID(fd)
		if err == nil && id != on {
			err = unix.EXDEV
		}
		if err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// mountID returns the mount of a descriptor. The kernel knows it without asking the filesystem.
func mountID(fd int) (int, error) {
	f, err := os.Open(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if id, ok := strings.CutPrefix(s.Text(), "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, fmt.Errorf("mount of descriptor %d: %w", fd, unix.EIO)
}
