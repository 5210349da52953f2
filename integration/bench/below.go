package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/mounts"
)

// awaitView waits until a dataset of small files has its kernel view on all nodes, if the machine supports views.
func (c *camp) awaitView(ctx context.Context, name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, n := range c.state.Nodes {
		path := filepath.Join(n.Mount, "data", name)
		if err := awaitMount(ctx, path, mounts.OverlayType); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s has no kernel view: see %s: %v\n", path, n.Log, err)
		}
	}
	return nil
}

// awaitMount waits until a mount of a type appears at path.
func awaitMount(ctx context.Context, path, kind string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		if on, err := mountedOn(path, kind); on || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

// mountedOn reports whether a mount of that type is at path.
func mountedOn(path, kind string) (bool, error) {
	at, err := mounts.At(path)
	return len(at) > 0 && at[len(at)-1].FSType == kind, err
}

// below makes the directory under the kernel view at path visible at the directory at: it belongs to the main mount,
// and has the dataset's inode numbers. The caller must unmount it.
func below(path, at string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	done := make(chan error, 1) // for one answer
	go func() {
		runtime.LockOSThread() // forever: the thread has entered another namespace
		done <- showBelow(path, at)
	}()
	return <-done
}

// showBelow unmounts the view in a private mount namespace of this thread.
func showBelow(path, at string) error {
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if viewed, e := mountedOn(path, mounts.OverlayType); err == nil && e == nil && viewed {
		err = unix.Unmount(path, 0)
	}
	tree := -1
	if err == nil {
		tree, err = unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	}
	if err = errors.Join(err, unix.Setns(int(home.Fd()), unix.CLONE_NEWNS)); err != nil {
		return err
	}
	defer unix.Close(tree)
	return unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
