package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// backMemory makes the machine own n bytes of unused memory. A virtual machine may have returned free pages to its
// host (free page reporting): the first access to such a page waits until the host has found one, which can take
// twenty times as long as writing to it, and is charged as processor time to the accessing process. The cost of an
// arm's stores would then depend on the arms before it. Pages that were freed last are used first, and the host takes
// a part of those every two seconds.
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
