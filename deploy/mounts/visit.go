package mounts

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// What the kernel keeps of a name that it knows, in bytes, of which it may throw away all at
// any time, and the part of the memory that all names of a dataset may take for that.
const (
	nameMemory  = 1200
	namesMemory = 256
)

// MostNames is how many names a dataset may have if the kernel shall know them all before they are
// asked for, on a machine with so much memory, in bytes.
func MostNames(memory int64) int64 { return memory / namesMemory / nameMemory }

// Memory is that of this machine, in bytes; 0 if it does not say.
func Memory() int64 {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return 0
	}
	return int64(i.Totalram) * int64(i.Unit)
}

// visitMount lists the directories of a mount, as far as all have no more than names names. By
// that the kernel knows all names and what they are, and opens a file for the first time
// without a question to the daemon. Who serves the mount is not believed: what he lists is not kept, and
// no link is followed. When he ends, so does this.
func visitMount(mount, names int) error {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", mount))
	if err != nil {
		return err
	}
	defer root.Close()
	return visit(root, int(min(int64(names), MostNames(Memory()))), visitMemory)
}

const (
	visitAtOnce = 512      // how many names are taken from a directory at a time
	visitMemory = 16 << 20 // bytes of paths of directories that are still to be visited
)

// visit lists up to names names, and keeps up to memory bytes of paths.
func visit(root *os.Root, names, memory int) error {
	for todo, held := []string{"."}, 1; len(todo) > 0; {
		dir := todo[len(todo)-1]
		todo, held = todo[:len(todo)-1], held-len(dir)
		f, err := root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		for err == nil && names >= 0 && held <= memory {
			var entries []os.DirEntry
			entries, err = f.ReadDir(visitAtOnce)
			names -= len(entries)
			for _, e := range entries {
				if e.IsDir() {
					sub := path.Join(dir, e.Name())
					todo, held = append(todo, sub), held+len(sub)
				}
			}
		}
		_ = f.Close() // it was only read
		if names < 0 || held > memory {
			return fmt.Errorf("more names than it should have: %w", unix.E2BIG)
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}
