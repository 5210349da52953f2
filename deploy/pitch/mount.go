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

// mountFuse mounts a new connection at path for the user and returns its
// descriptor. The caller gives it to a daemon and closes it.
func mountFuse(path string, uid, gid uint32) (*os.File, error) {
	f, err := os.OpenFile(fuseDevice, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other,default_permissions,max_read=1048576",
		f.Fd(), uid, gid)
	if err := unix.Mount("bivouac", path, fuseType, unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		_ = f.Close() // nothing is mounted by it
		return nil, fmt.Errorf("mount %s: %w", path, err)
	}
	return f, nil
}

// propagates reports whether a mount below dir reaches other mount namespaces,
// which jobs have where the site uses job_container/tmpfs.
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

// maxStacked is how many mounts, one upon the other, unmount takes away.
const maxStacked = 16

// unmount aborts and detaches all that is mounted at path. MNT_FORCE aborts
// the FUSE connection, so that whoever waits for an answer gets an error, also
// through a copy of the mount in another namespace.
func unmount(ctx context.Context, path string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for range maxStacked {
		at, err := mounts.At(path)
		if err != nil || len(at) == 0 {
			return err
		}
		if err := detach(ctx, path); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	return fmt.Errorf("unmount %s: more than %d mounts upon each other: %w", path, maxStacked, unix.EBUSY)
}

// detach does not wait longer than ctx for the kernel. Its goroutine then ends
// with the system call, or with this process.
func detach(ctx context.Context, path string) error {
	done := make(chan error, 1) // the result may come when nobody waits
	go func() {
		done <- unix.Unmount(path, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}()
	select {
	case err := <-done:
		if errors.Is(err, unix.EINVAL) { // somebody else was faster
			return nil
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
