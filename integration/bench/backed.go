package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// backMemory has the machine own n bytes of memory that nobody uses. A virtual machine
// may have given free pages back to its host (free page reporting): the first to
// touch such a page again waits until the host has found one, which can take twenty
// times as long as to write to it, and is counted as his processor time. What an
// arm stores would then cost what the arms before it have left. Pages that were freed last
// are used first, and the host takes a part of those every two seconds.
func backMemory(n int64) error {
	if n == 0 {
		return nil
	}
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1
	}
	return os.NewSyscallError("munmap", unix.Munmap(b))
}
