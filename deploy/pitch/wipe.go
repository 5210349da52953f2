package pitch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/mounts"
)

const (
	// maxDepth is how deep wipe descends before it moves deeper directories to the top, so that a tree of any depth
	// needs a bounded number of descriptors.
	maxDepth = 64
	// wipeBatch is how many names of a directory are read at once.
	wipeBatch = 1024
)

// wipe removes the directory at path with everything in it; a missing path is no error. The tree belongs to the user,
// whose processes may still change it: every step is relative to an open directory, follows no symbolic link, and stays
// on the device of path. It takes each directory from the user before emptying it, so that the user cannot create files
// as fast as they are removed. Mounts at path and below, which a user can make with fusermount3, are detached before
// they are opened. All directories above path must belong to root, on the same device.
func wipe(ctx context.Context, path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	var above unix.Stat_t
	if err := unix.Fstat(int(parent.Fd()), &above); err != nil {
		return fmt.Errorf("%s: %w", parent.Name(), err)
	}
	w := &wiper{ctx: ctx, dev: uint64(above.Dev)}
	err = w.top(int(parent.Fd()), filepath.Base(path))
	for errors.Is(err, unix.ENOENT) && ctx.Err() == nil { // an epilog and a prolog may remove the same tree
		err = w.top(int(parent.Fd()), filepath.Base(path))
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

type wiper struct {
	ctx   context.Context
	dev   uint64 // of the tree
	root  int    // the top directory
	moved int    // how many deep directories were moved up
}

func (w *wiper) top(parent int, name string) error {
	d, err := w.enter(parent, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return w.unlink(parent, name, 0)
	case err != nil:
		return err
	}
	defer d.Close()
	w.root = int(d.Fd())
	for rounds := 0; ; rounds++ { // directories that were moved up or created meanwhile need another round
		if err := w.empty(d, 0); err != nil {
			return err
		}
		err := w.unlink(parent, name, unix.AT_REMOVEDIR)
		if !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		if err := w.ctx.Err(); err != nil {
			return err
		}
	}
}

// openDir opens a directory, unless something is mounted there (EXDEV).
func openDir(parent int, name string) (*os.File, error) {
	h, err := mounts.Beneath(parent, name)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	fd, err := unix.Openat(int(h.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// enter opens a directory and takes it.
func (w *wiper) enter(parent int, name string) (*os.File, error) {
	_, err := uncover(w.ctx, parent, name)
	for err == nil {
		var d *os.File
		if d, err = openDir(parent, name); err == nil {
			if err = take(d, w.dev); err == nil {
				return d, nil
			}
			_ = d.Close() // nothing was written
		}
		if n, e := uncover(w.ctx, parent, name); n > 0 { // mounted meanwhile
			err = e
		}
	}
	return nil, err
}

// unlink is unlinkat that first detaches mounts over the name.
func (w *wiper) unlink(dir int, name string, flags int) error {
	err := unlinkat(dir, name, flags)
	if errors.Is(err, unix.EBUSY) {
		if n, _ := uncover(w.ctx, dir, name); n > 0 { // otherwise EBUSY is reported
			err = unlinkat(dir, name, flags)
		}
	}
	return err
}

// unlinkat treats a missing name as success.
func unlinkat(dir int, name string, flags int) error {
	err := unix.Unlinkat(dir, name, flags)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// empty removes everything in d.
func (w *wiper) empty(d *os.File, depth int) error {
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if _, err := d.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := d.Readdirnames(wipeBatch)
		if err != nil && err != io.EOF {
			return err
		}
		if len(names) == 0 {
			return nil
		}
		for _, name := range names {
			if err := w.remove(d, name, depth); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
}

func (w *wiper) remove(d *os.File, name string, depth int) error {
	err := w.unlink(int(d.Fd()), name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	if depth >= maxDepth {
		return w.moveUp(d, name)
	}
	sub, err := w.enter(int(d.Fd()), name)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOENT) {
		return nil // it was replaced meanwhile: the next round handles it
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	if err := w.empty(sub, depth+1); err != nil {
		return err
	}
	err = w.unlink(int(d.Fd()), name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
		return nil // changed meanwhile: the next round handles it
	}
	return err
}

// take makes the caller the owner of a directory with sole access, even against processes that have it open. The
// directory must be on device on. Without root a caller can only remove its own files.
func take(d *os.File, on uint64) error {
	var st unix.Stat_t
	err := unix.Fstat(int(d.Fd()), &st)
	if err == nil && uint64(st.Dev) != on {
		err = fmt.Errorf("something is mounted there: %w", unix.EXDEV)
	}
	if me := uint32(os.Geteuid()); err == nil && st.Uid != me {
		err = unix.Fchown(int(d.Fd()), int(me), -1)
	}
	if err == nil && st.Mode&0o777 != 0o700 {
		err = unix.Fchmod(int(d.Fd()), 0o700)
	}
	return err
}

func (w *wiper) moveUp(d *os.File, name string) error {
	for {
		w.moved++
		to := ".deep-" + strconv.Itoa(w.moved)
		err := unix.Renameat2(int(d.Fd()), name, w.root, to, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EBUSY) {
			if n, _ := uncover(w.ctx, int(d.Fd()), name); n > 0 { // otherwise EBUSY is reported
				continue
			}
		}
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}
