package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestList: a tree is listed up to the announced number of names, and no link is followed.
func TestList(t *testing.T) {
	dir := t.TempDir()
	names := 0
	for i := range 3 {
		sub := filepath.Join(dir, fmt.Sprint("dir", i), "below")
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		names += 2
		for k := range namesAtOnce + 10 {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(k)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			names++
		}
		for k, to := range []string{"..", "/", dir} {
			if err := os.Symlink(to, filepath.Join(sub, fmt.Sprint("link", k))); err != nil {
				t.Fatal(err)
			}
			names++
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := list(root, names, pathMemory); err != nil {
		t.Errorf("a tree of %d names: %v", names, err)
	}
	for _, n := range []int{0, names - 1} {
		if err := list(root, n, pathMemory); !errors.Is(err, unix.E2BIG) {
			t.Errorf("a tree of %d names of which %d were announced: %v, want E2BIG", names, n, err)
		}
	}
	if err := list(root, names, 10); !errors.Is(err, unix.E2BIG) {
		t.Errorf("paths of more than 10 bytes: %v, want E2BIG", err)
	}
}
