package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// checkFuse says what mounting needs and is not there.
func checkFuse() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: ask for mode 0666, which udev gives it by default", err)
	}
	if err != nil {
		return fmt.Errorf("this kernel has no FUSE (%w): load the module with modprobe fuse", err)
	}
	_ = f.Close() // nothing was asked of it
	if os.Getuid() == 0 {
		return nil
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		return fmt.Errorf("a user mounts by fusermount3 (%w): install the package fuse3", err)
	}
	return nil
}

// least is what a node needs before it holds any data, in bytes.
const least = 1 << 20

// checkRoom refuses a disk on which a daemon could not even log why it ended.
func checkRoom(dir string, nodes int) error {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	if err != nil {
		err = unix.Statfs(filepath.Dir(dir), &st)
	}
	if free := int64(st.Bavail) * st.Bsize; err == nil && st.Flags&unix.ST_RDONLY == 0 && free < least*int64(nodes) {
		return fmt.Errorf("%s has %d bytes free, and %d nodes need %d to begin: choose another --dir: %w",
			dir, free, nodes, least*nodes, syscall.ENOSPC)
	}
	return nil // what else is wrong will show when it is used
}

// claim makes the directory ready for a new job, or refuses one that is in use.
func claim(dir string) (*State, func(), error) {
	if m, err := mountpoints(dir); err == nil && len(m) > 0 && !exists(statePath(dir)) {
		return nil, nil, fmt.Errorf("%s is still mounted by an earlier job: clean up with bivouac down --dir %s", m[0], dir)
	}
	s := &State{Dir: dir}
	switch err := makeDirs(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("up: %w: make %s first", err, filepath.Dir(dir))
	case err != nil:
		return nil, nil, fmt.Errorf("up: %w: choose another --dir", err)
	}
	f, err := lock(dir)
	if err != nil {
		return nil, nil, err
	}
	unlock := func() { _ = f.Close() }
	if exists(statePath(dir)) {
		unlock()
		return nil, nil, fmt.Errorf("a job is already up (or was killed) in %s: end it with bivouac down --dir %s", dir, dir)
	}
	if err := s.save(); err != nil {
		err = errors.Join(fmt.Errorf("up: %w: choose another --dir", err), teardown(s, 0))
		unlock()
		return nil, nil, err
	}
	return s, unlock, nil
}

// makeDirs makes what the job's files are in, but not the directory above it:
// a disk that is not mounted is not replaced by a directory. Several may do so at
// once, and one of them makes dir.
func makeDirs(dir string) error {
	err := makeHidden(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = os.Mkdir(dir, 0o700)
	switch {
	case errors.Is(err, fs.ErrExist): // another has just made it
		return makeHidden(dir)
	case err != nil:
		return err
	}
	if err = makeHidden(dir); err == nil {
		err = os.WriteFile(madePath(dir), nil, 0o600)
	}
	if err != nil { // and that counts
		_ = os.Remove(hidden(dir))
		_ = os.Remove(dir)
	}
	return err
}

func makeHidden(dir string) error {
	err := os.Mkdir(hidden(dir), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
