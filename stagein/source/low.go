package source

import (
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// The priorities of ioprio_set(2): a class and a level of it.
const (
	ioProcess    = 1 // who: a thread; 0 is this one
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
		return ioLowest // then none is set
	}
	return own
}

// Low does do with the lowest priority among what the disks do as best they can,
// where they have priorities: what is read or written there gives way to the
// job's own. One that is idle stays so.
func Low(do func() error) error {
	if own := ioOwn(); own == ioLowest || own>>ioClassShift == ioIdle {
		return do()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioProcess, 0, ioLowest); errno == 0 {
		defer func() { _, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioProcess, 0, ioOwn()) }() // it had that
	}
	return do()
}

// Background is f with reads that give way to others, if priorities matter where it is.
func Background(f File) File {
	if !ranked(f) {
		return f
	}
	return lowFile{f}
}

// Wrapper is a File that is another's, with something added.
type Wrapper interface{ Unwrap() File }

// ranked reports whether reads of f may be those of a disk of this machine.
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

// disks has, for devices without a number of their own, whether they are on disks of
// this machine.
var disks sync.Map // uint64 -> bool

// onDisk reports whether a file on the device may be read from a disk of this machine.
// The others are memory, or behind a network: a client of a parallel filesystem knows no
// priorities, and to set one for each read takes as long as a small read.
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

// zfsMagic is what statfs(2) says of ZFS.
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
