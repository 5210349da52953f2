package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/mounts"
)

// grace is how long a daemon may take to unmount and stop by itself.
const grace = 10 * time.Second

// Down ends the job in dir and removes its files and mounts. A partly removed job is no error; ErrNothing if there is
// no job. users lists the processes that used its mounts, in words.
func Down(dir string) (users []string, err error) {
	dir, err = real(dir)
	if err != nil {
		return nil, err
	}
	left, err := mountpoints(dir)
	if err != nil {
		return nil, err
	}
	if !exists(hidden(dir)) {
		if len(left) == 0 {
			return nil, fmt.Errorf("%w in %s", ErrNothing, dir)
		}
		if err := os.Mkdir(hidden(dir), 0o700); err != nil { // the directory was removed by hand
			return nil, fmt.Errorf("down: %w", err)
		}
	}
	s, err := Load(dir)
	if errors.Is(err, ErrOthers) {
		return nil, err
	}
	f, e := lock(dir)
	if e != nil {
		return nil, e
	}
	defer f.Close()
	if err == nil {
		s, err = Load(dir) // another Down may have changed it
	}
	if errors.Is(err, fs.ErrNotExist) {
		s, err = &State{Dir: dir}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("down: %w: remove it by hand if no bivouac process is left", err)
	}
	users = usersOf(left)
	return users, teardown(s, grace)
}

// usersOf names the processes with an open file or their working directory in one of the mounts. It accesses no mount.
func usersOf(mounts []string) (users []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is good
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	seen := make(map[string]bool)
	self, _ := os.Executable() // on failure, helpers are named, too
	for _, link := range append(links, files...) {
		to, err := os.Readlink(link)
		pid := strings.Split(link, "/")[2]
		if err != nil || seen[pid] || !slices.ContainsFunc(mounts, func(m string) bool { return to == m || strings.HasPrefix(to, m+"/") }) {
			continue
		}
		seen[pid] = true
		if exe, _ := os.Readlink("/proc/" + pid + "/exe"); exe == self {
			continue // a helper of a daemon
		}
		name, _ := os.ReadFile("/proc/" + pid + "/comm") // the process may have ended
		users = append(users, fmt.Sprintf("process %s (%s)", pid, strings.TrimSpace(string(name))))
	}
	return users
}

// teardown stops the daemons first, so that no mount can hang, then unmounts,
// then removes.
func teardown(s *State, grace time.Duration) error {
	stop(append(strays(s.Dir), s.Nodes...), grace)
	var errs []error
	left, err := mountpoints(s.Dir)
	errs = append(errs, err)
	points := make(map[string]bool)
	for _, m := range left {
		points[m] = true
		mounts.Abort(m)
	}
	for _, m := range left {
		errs = append(errs, unmountAt(m))
	}
	if err := errors.Join(errs...); err != nil {
		return err // files below a mount must not be removed
	}
	for _, n := range s.Nodes {
		points[n.Mount] = true
	}
	for p := range points {
		errs = append(errs, removePoint(p))
	}
	made := exists(madePath(s.Dir))
	if err := os.RemoveAll(hidden(s.Dir)); err != nil {
		errs = append(errs, err)
	}
	if made {
		errs = append(errs, removeEmpty(s.Dir))
	}
	return errors.Join(errs...)
}

func removeEmpty(dir string) error {
	err := os.Remove(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil // files of the user stay
	}
	return err
}

// removePoint removes a mountpoint. A daemon that was killed while it mounted may have left a mount that appeared after
// all others were detached.
func removePoint(dir string) error {
	err := removeEmpty(dir)
	if !errors.Is(err, syscall.EBUSY) {
		return err
	}
	mounts.Abort(dir)
	if err := unmount(dir); err != nil {
		return err
	}
	return removeEmpty(dir)
}

func stop(nodes []Node, grace time.Duration) {
	for _, n := range nodes {
		if n.alive() {
			_ = unix.Kill(n.PID, unix.SIGTERM)
			_ = unix.Kill(n.PID, unix.SIGCONT)
		}
	}
	if waitGone(nodes, grace) {
		return
	}
	for _, n := range nodes {
		if n.alive() {
			_ = unix.Kill(-n.PID, unix.SIGKILL) // with a fusermount3 that it runs
		}
	}
	waitGone(nodes, 5*time.Second)
}

// waitGone waits until all processes of the nodes have ended.
func waitGone(nodes []Node, d time.Duration) bool {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for end := time.Now().Add(d); ; <-t.C {
		alive := false
		for _, n := range nodes {
			alive = alive || n.alive()
		}
		if !alive || time.Now().After(end) {
			return !alive
		}
	}
}

// unmountAt is unmount, if path is still mounted: the unmount of an outer mount also removes the mounts below it.
func unmountAt(path string) error {
	at, err := mounts.At(path)
	if err != nil || len(at) == 0 {
		return err
	}
	return unmount(path)
}

// unmount ends a mount whose server has ended or cannot end: a killed daemon with a thread that waits for its own mount
// does not end before the connection is aborted.
func unmount(path string) error {
	err := unix.Unmount(path, unix.MNT_FORCE|unix.MNT_DETACH)
	if err == nil || errors.Is(err, unix.EINVAL) {
		return nil
	}
	for _, bin := range []string{"fusermount3", "fusermount"} {
		out, e := exec.Command(bin, "-u", "-z", path).CombinedOutput()
		if e == nil {
			return nil
		}
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return fmt.Errorf("unmount %s: %w", path, err)
}
