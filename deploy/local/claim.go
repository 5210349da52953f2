package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// checkFuse returns an error that names what mounting lacks.
func checkFuse() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: users need mode 0666, the default of udev: ask the administrator", err)
	}
	if err != nil {
		return fmt.Errorf("this kernel has no FUSE (%w): load the module with modprobe fuse", err)
	}
	_ = f.Close() // it was not used
	if os.Getuid() == 0 {
		return nil
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		return fmt.Errorf("users other than root need fusermount3 (%w): install the package fuse3", err)
	}
	return nil
}

// maxNodes is the maximum number of nodes of a job on one machine.
const maxNodes = 4096

// CheckNodes refuses numbers of nodes that no job can have, or for which this machine lacks memory.
func CheckNodes(n int) error {
	if n < 1 || n > maxNodes {
		return fmt.Errorf("--nodes %d: 1 to %d on one machine", n, maxNodes)
	}
	return roomForNodes(n, "/proc/meminfo")
}

func roomForNodes(n int, meminfo string) error {
	free, ok := availableMemory(meminfo)
	if need := int64(n) * nodeMemory; n > fewNodes && ok && free < need {
		return fmt.Errorf("--nodes %d: %d nodes need about %d MiB of memory, and this machine has %d MiB free: choose fewer nodes: %w",
			n, n, need>>20, free>>20, syscall.ENOMEM)
	}
	return nil
}

const (
	nodeMemory = 64 << 20 // memory of an idle daemon
	fewNodes   = 64       // not refused for lack of memory: swap may suffice
)

// availableMemory returns the memory still available to programs, in bytes, from meminfo.
func availableMemory(meminfo string) (bytes int64, ok bool) {
	b, err := os.ReadFile(meminfo)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10, true
		}
	}
	return 0, false
}

// least is the space that a node needs before it holds any data, in bytes.
const least = 1 << 20

// checkRoom refuses a disk without room for a daemon to log why it ended.
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
	return nil // other errors show when the directory is used
}

// claim prepares the directory for a new job, or refuses one that is in use.
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

// makeDirs makes the directories of the job, but not the parent of dir: it must not replace an unmounted disk by a
// directory. Of several concurrent calls, one makes dir.
func makeDirs(dir string) error {
	err := makeHidden(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = os.Mkdir(dir, 0o700)
	switch {
	case errors.Is(err, fs.ErrExist): // another call has just made it
		return makeHidden(dir)
	case err != nil:
		return err
	}
	if err = makeHidden(dir); err == nil {
		err = os.WriteFile(madePath(dir), nil, 0o600)
	}
	if err != nil { // and this error is returned
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
