package mounts

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// visit lists the directories of the dataset as it is seen now, as far as all have no
// more than names names. By that the kernel knows all names and what they are, and opens a file
// for the first time without a question to the daemon. Who serves the mount is not believed:
// what he lists is not kept, and no link is followed.
func (c *Cover) visit(names int) error {
	dir, err := c.open("data/"+c.Name, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir) // it was only read
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir))
	if err != nil {
		return err
	}
	defer root.Close()
	return visit(root, names)
}

// visitAtOnce is how many names are taken from a directory at a time.
const visitAtOnce = 512

func visit(root *os.Root, names int) error {
	for todo := []string{"."}; len(todo) > 0; {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		f, err := root.Open(dir)
		if err != nil {
			return err
		}
		for err == nil && names >= 0 {
			var entries []os.DirEntry
			entries, err = f.ReadDir(visitAtOnce)
			names -= len(entries)
			for _, e := range entries {
				if e.IsDir() {
					todo = append(todo, path.Join(dir, e.Name()))
				}
			}
		}
		_ = f.Close() // it was only read
		if names < 0 {
			return fmt.Errorf("more names than it should have: %w", unix.E2BIG)
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}
