package source

import (
	"slices"

	"golang.org/x/sys/unix"
)

// exactly are the filesystems that take a read of any size past the page cache
// (O_DIRECT): FUSE and NFS. Others want whole pages then, or would read a disk for
// what the cache has.
var exactly = []int64{unix.FUSE_SUPER_MAGIC, unix.NFS_SUPER_MAGIC}

// Exact has reads of f fetch what they ask for, and not the whole pages that it lies
// in, where the filesystem can do that. It reports whether they do.
func Exact(f File) bool {
	for {
		switch v := f.(type) {
		case *osFile:
			return v.setExact()
		case Wrapper:
			f = v.Unwrap()
		default:
			return false
		}
	}
}

func (f *osFile) setExact() bool {
	if f.use() != nil {
		return false // it is closed
	}
	defer f.done() // it was only read
	var st unix.Statfs_t
	if err := unix.Fstatfs(f.fd, &st); err != nil || !slices.Contains(exactly, st.Type) {
		return false
	}
	flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0)
	if err != nil {
		return false
	}
	_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, flags|unix.O_DIRECT)
	f.exact.Store(err == nil)
	return err == nil
}

// inexact undoes Exact, for all reads: a server may refuse what its client allows.
func (f *osFile) inexact() {
	if flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0); err == nil {
		_, _ = unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, flags&^unix.O_DIRECT) // else the next read fails
	}
	f.exact.Store(false)
}
