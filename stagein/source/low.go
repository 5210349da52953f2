package source

import (
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// I/O priorities as in ioprio_set(2): a class and a level within it.
const (
	ioProcess    = 1 // target: a thread; 0 is the calling one
	ioClassShift = 13
	ioBestEffort = 2
	ioIdle       = 3
	ioLowest     = ioBestEffort<<ioClassShift | 7
)

// ioOwn is the priority that this process was started with.
var ioOwn = sync.OnceValue(ioPriority)

func ioPriority() uintptr {
	own, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ioProcess, 0, 0)
	if errno != 0 {
		return ioLowest // so that none is ever set
	}
	return own
}

// Low runs do with the lowest best-effort I/O priority, so that its I/O gives way to the job's own on disks that
// have priorities. A process in the idle class stays there.
func Low(do func() error) error {
	if own := ioOwn(); own == ioLowest || own>>ioClassShift == ioIdle {
		return do()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioProcess, 0, ioLowest); errno == 0 {
		defer func() { _, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioProcess, 0, ioOwn()) }() // it had that before
	}
	return do()
}

// Background returns f with reads of low priority, if it lies on a disk that has priorities.
func Background(f File) File {
	if !ranked(f) {
		return f
	}
	return lowFile{f}
}

// Wrapper is a File that wraps another one.
type Wrapper interface{ Unwrap() File }

// ranked reports whether reads of f may go to a local disk.
func ranked(f File) bool {
	for {
		switch v := f.(type) {
		case *osFile:
			return v.disk
		case Wrapper:
			f = v.Unwrap()
		default:
			return true
		}
	}
}

// disks records, for devices without a device number of their own, whether they are on local disks.
var disks sync.Map // uint64 -> bool

// onDisk reports whether a file on the device may be read from a local disk. Other files are in memory or on a
// network filesystem, whose client has no priorities; and setting one takes as long as a small read.
func onDisk(fd int, dev uint64) bool {
	if unix.Major(dev) != 0 {
		return true
	}
	if is, ok := disks.Load(dev); ok {
		return is.(bool)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return true
	}
	is := slices.Contains([]int64{unix.BTRFS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, unix.BCACHEFS_SUPER_MAGIC, zfsMagic}, st.Type)
	disks.Store(dev, is)
	return is
}

// zfsMagic is the magic number of ZFS in statfs(2).
const zfsMagic = 0x2fc12fc1

type lowFile struct{ File }

// ReadAt implements io.ReaderAt.
func (f lowFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = Low(func() error {
		var err error
		n, err = f.File.ReadAt(p, off)
		return err
	})
	return n, err
}
