package source

import (
	"runtime"
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

// Background is f with reads that give way to others.
func Background(f File) File { return lowFile{f} }

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
