package mounts

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// nameMemory is the kernel's memory for a cached name, in bytes, and namesShare the part of
// the machine's memory that the names of one dataset may take.
const (
	nameMemory = 1200
	namesShare = 256
)

// MostNames is the largest number of names with which a dataset is listed beforehand, on a
// machine with that much memory, in bytes.
func MostNames(memory int64) int64 { return memory / namesShare / nameMemory }

// Memory is the memory of this machine, in bytes; 0 if unknown.
func Memory() int64 {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return 0
	}
	return int64(i.Totalram) * int64(i.Unit)
}

// warmNames lists all directories of a mount, which has up to names names, so that the
// kernel caches names and attributes and the first open of a file needs no lookup. The
// server of the mount is not trusted: nothing that it lists is kept, no link is followed,
// and names and memory are bounded. It ends with the mount.
func warmNames(mount, names int) error {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", mount))
	if err != nil {
		return err
	}
	defer root.Close()
	return list(root, int(min(int64(names), MostNames(Memory()))), pathMemory)
}

const (
	namesAtOnce = 512      // names that are read from a directory at once
	pathMemory  = 16 << 20 // bytes of paths of directories that are still to be listed
)

// list lists up to names names and keeps up to memory bytes of paths.
func list(root *os.Root, names, memory int) error {
	for todo, held := []string{"."}, 1; len(todo) > 0; {
		dir := todo[len(todo)-1]
		todo, held = todo[:len(todo)-1], held-len(dir)
		f, err := root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		for err == nil && names >= 0 && held <= memory {
			var entries []os.DirEntry
			entries, err = f.ReadDir(namesAtOnce)
			names -= len(entries)
			for _, e := range entries {
				if e.IsDir() {
					sub := path.Join(dir, e.Name())
					todo, held = append(todo, sub), held+len(sub)
				}
			}
		}
		_ = f.Close() // read only
		if names < 0 || held > memory {
			return fmt.Errorf("the tree has more names than announced: %w", unix.E2BIG)
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}
