package pitch

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/mounts"
)

// stack mounts n filesystems on top of each other at dir.
func stack(t *testing.T, dir string, n int) {
	t.Helper()
	needRoot(t)
	for range n {
		if err := unix.Mount("none", dir, "tmpfs", 0, "size=4k"); err != nil {
			t.Skip("needs to mount: ", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // if it still exists
	}
}

// TestUnmountStacked: all mounts that a user made on top of the job's are removed, and those that are to stay do.
func TestUnmountStacked(t *testing.T) {
	dir := t.TempDir()
	stack(t, dir, 100)
	for _, keep := range []int{1, 0} {
		if err := unmountAbove(t.Context(), dir, keep, unmountTime); err != nil {
			t.Error(err)
		}
		if at, err := mounts.At(dir); err != nil || len(at) != keep {
			t.Errorf("%d mounts are left, %v, want %d", len(at), err, keep)
		}
	}
}

// TestDetachGone: a mount that another teardown removed, with its directory, in the meantime causes no error.
func TestDetachGone(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "removed")} {
		if err := detach(t.Context(), path); err != nil {
			t.Errorf("detach of %s = %v", path, err)
		}
	}
}

// TestUnmountStops: unmounting ends with its context.
func TestUnmountStops(t *testing.T) {
	dir := t.TempDir()
	stack(t, dir, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := unmount(ctx, dir, unmountTime); !errors.Is(err, context.Canceled) {
		t.Errorf("unmount = %v, want that it was cancelled", err)
	}
}
