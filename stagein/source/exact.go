package source

import (
	"slices"

	"golang.org/x/sys/unix"
)

// directAnySize lists the filesystems that accept direct I/O (O_DIRECT) of any size: FUSE and NFS. Others require whole
// pages, or would read from disk data that is in the page cache.
var directAnySize = []int64{unix.FUSE_SUPER_MAGIC, unix.NFS_SUPER_MAGIC}

// Wrapper is a File that wraps another one.
type Wrapper interface{ Unwrap() File }

// Exact makes reads of f fetch exactly the requested bytes, bypassing the page cache, if the filesystem allows that. It
// reports whether they do.
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
	defer f.done() // read only
	var st unix.Statfs_t
	if err := unix.Fstatfs(f.fd, &st); err != nil || !slices.Contains(directAnySize, st.Type) {
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

// inexact undoes Exact for all later reads: a server may reject what its client accepts.
func (f *osFile) inexact() {
	if flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0); err == nil {
		_, _ = unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, flags&^unix.O_DIRECT) // if not, the next read fails
	}
	f.exact.Store(false)
}
