package mounts

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// proc reads /proc. Each method takes a path there and does not wait for another filesystem.
type proc interface {
	list(dir string) ([]string, error)
	read(file string) ([]byte, error)
	link(path string) (string, error)
	// writes reports whether the descriptor behind a link is writable.
	writes(link string) (bool, error)
	// place returns the mount and the inode behind a link.
	place(link string) (place, error)
}

// procfs is the /proc of this machine.
type procfs struct{}

var _ proc = procfs{}

func (procfs) list(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// read makes no os.File: a look reads thousands of small files.
func (procfs) read(file string) (b []byte, err error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer unix.Close(fd) // read only
	b = make([]byte, 0, 512)
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file, err)
		case n == 0:
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
	}
}

func (procfs) link(path string) (string, error) { return os.Readlink(path) }

// writes checks the permissions of the link, which tell how the descriptor was opened.
func (procfs) writes(link string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Lstat(link, &st); err != nil {
		return false, fmt.Errorf("%s: %w", link, err)
	}
	return st.Mode&unix.S_IWUSR != 0, nil
}

func (procfs) place(link string) (place, error) {
	fd, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return place{}, fmt.Errorf("%s: %w", link, err)
	}
	defer unix.Close(fd) // it was only a handle
	return placeOf(fd)
}

// placeOf returns the mount and inode of our descriptor.
func placeOf(fd int) (place, error) {
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	return descriptor(b), err
}

// descriptor parses fdinfo for the mount and the inode of an open file; 0 is no inode.
func descriptor(fdinfo []byte) (at place) {
	for line := range strings.Lines(string(fdinfo)) {
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "mnt_id":
			at.mount = strings.TrimSpace(value)
		case "ino":
			n, _ := strconv.ParseUint(strings.TrimSpace(value), 10, 64) // 0 is no directory
			at.ino = metadata.Ino(n)
		}
	}
	return at
}
