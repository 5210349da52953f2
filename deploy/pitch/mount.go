package pitch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/mounts"
)

const (
	fuseDevice = "/dev/fuse"
	fuseType   = mounts.FUSEType
)

// mountFuse mounts a new FUSE connection at path for the user and returns its descriptor. The
// caller passes it to a daemon and closes it.
func mountFuse(path string, uid, gid uint32) (*os.File, error) {
	f, err := os.OpenFile(fuseDevice, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other,default_permissions,max_read=1048576",
		f.Fd(), uid, gid)
	if err := unix.Mount("bivouac", path, fuseType, unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		_ = f.Close() // nothing uses it
		return nil, fmt.Errorf("mount %s: %w", path, err)
	}
	return f, nil
}

// mountBackstop mounts a FUSE connection that no process serves. While no other mount lies upon it, every access fails
// with ENOTCONN. Without it programs would see the bare mountpoint, and conclude that their checkpoints are missing.
func mountBackstop(path string, uid, gid uint32) error {
	f, err := mountFuse(path, uid, gid)
	if err != nil {
		return err
	}
	return f.Close()
}

// propagates reports whether a mount below dir propagates to other mount namespaces, which jobs have where the site
// uses job_container/tmpfs.
func propagates(dir string) bool {
	table, err := mounts.Table()
	if err != nil {
		return false
	}
	best := mounts.Entry{}
	for _, m := range table {
		if (m.Path == dir || strings.HasPrefix(dir, strings.TrimSuffix(m.Path, "/")+"/")) && len(m.Path) >= len(best.Path) {
			best = m
		}
	}
	return best.Shared
}

// unmount aborts and detaches all mounts at path.
func unmount(ctx context.Context, path string, limit time.Duration) error {
	return unmountAbove(ctx, path, 0, limit)
}

// unmountAbove aborts and detaches the mounts at path except the lowest keep ones. MNT_FORCE aborts the FUSE
// connection, so that pending requests fail, including those through a copy of the mount in another namespace. The user
// can have mounted there, too, 1,000 times with fusermount3.
func unmountAbove(ctx context.Context, path string, keep int, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		at, err := mounts.At(path)
		if err != nil || len(at) <= keep {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("unmount %s: %d stacked mounts are left: %w", path, len(at)-keep, err)
		}
		for range (len(at) - keep + 1) / 2 { // not all: the user can unmount some meanwhile
			if err := detach(ctx, path); err != nil {
				return fmt.Errorf("unmount %s: %w", path, err)
			}
		}
	}
}

// detach waits for the kernel until ctx ends at the latest. Its goroutine ends with the system call.
func detach(ctx context.Context, path string) error {
	done := make(chan error, 1) // a late result needs no receiver
	go func() {
		done <- unix.Unmount(path, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}()
	select {
	case err := <-done:
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // already unmounted, and removed, by another teardown
			return nil
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// uncover detaches the mounts at name in the open directory dir, with all mounts inside them, and returns how many
// there were. It asks no filesystem. Below dir it follows no link, so that it detaches nothing elsewhere, even if the
// user exchanges the directory.
func uncover(ctx context.Context, dir int, name string) (n int, err error) {
	dir, err = unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0) // the goroutine may outlive the call
	if err != nil {
		return 0, err
	}
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1) // a late result needs no receiver
	go func() {
		defer unix.Close(dir)
		var r result
		path := fmt.Sprintf("/proc/self/fd/%d/%s", dir, name)
		for r.err = ctx.Err(); r.err == nil; r.n++ {
			if r.err = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); r.err != nil {
				break
			}
			r.err = ctx.Err()
		}
		done <- r
	}()
	select {
	case r := <-done:
		// Nothing is mounted there any more; EPERM: we are not root.
		if errors.Is(r.err, unix.EINVAL) || errors.Is(r.err, unix.ENOENT) || errors.Is(r.err, unix.EPERM) {
			r.err = nil
		}
		return r.n, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
