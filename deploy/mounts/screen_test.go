package mounts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestScreen: behind a screen nobody sees what is mounted, whether the mounts
// propagate or not. A process in the directory keeps it, from another mount namespace,
// too; a file that is open keeps it from a plain unmount alone.
func TestScreen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	if !canScreen() {
		t.Skip("needs Linux 6.5, to mount beneath")
	}
	for what, propagation := range map[string]uintptr{"private": unix.MS_PRIVATE, "shared": unix.MS_SHARED} {
		t.Run(what, func(t *testing.T) {
			base := t.TempDir()
			done := make(chan error, 1) // one answer
			go func() {
				runtime.LockOSThread() // for ever: the thread has left the others
				done <- screened(t, base, propagation)
			}()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
	}
}

func screened(t *testing.T, base string, propagation uintptr) error {
	set := filepath.Join(base, "data", "set")
	for _, do := range []func() error{
		ownNamespace,
		func() error { return unix.Mount("base", base, "tmpfs", 0, "") },
		func() error { return unix.Mount("", base, "", propagation, "") },
		func() error { return os.MkdirAll(filepath.Join(set, "sub"), 0o755) },
		func() error { return os.WriteFile(filepath.Join(set, "file"), []byte("below"), 0o644) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	data, err := unix.Open(filepath.Dir(set), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	m, err := newMount("tmpfs", [][2]string{{"source", "new"}})
	if err != nil {
		return errors.Join(err, unix.Close(data))
	}
	walker, err := os.Open(filepath.Join(set, "sub"))
	if err != nil {
		return err
	}
	defer walker.Close()
	was := identity(t, unix.AT_FDCWD, set)
	s := &screen{data: data, name: "set"}
	defer s.close()
	if err := errors.Join(s.hide(m), unix.Close(m)); err != nil {
		return err
	}
	if got := identity(t, unix.AT_FDCWD, set); got != was || identity(t, int(walker.Fd()), "..") != was {
		t.Errorf("the directory is %v, before it was %v", got, was)
	}
	return lifted(t, s, set, was)
}

// lifted lifts a screen, when everybody has left it.
func lifted(t *testing.T, s *screen, set string, was [3]uint64) error {
	user := exec.Command("unshare", "--mount", "--propagation", "slave", "sleep", "1000")
	user.Dir = set
	if err := user.Start(); err != nil {
		return err
	}
	for range 2 * minUnused {
		if s.try(true) {
			t.Error("the screen is lifted over who works there")
		}
	}
	_ = user.Process.Kill()
	_ = user.Wait() // it was killed
	f, err := os.Open(filepath.Join(set, "file"))
	if err != nil {
		return err
	}
	defer f.Close()
	for range 2 * minUnused {
		if s.try(false) {
			t.Error("a plain unmount was done under an open file")
		}
	}
	if !s.there() || identity(t, unix.AT_FDCWD, set) != was || !s.try(true) || s.there() {
		t.Error("the screen is not lifted when only a file is open")
	}
	if identity(t, unix.AT_FDCWD, set) == was {
		t.Error("what was hidden is not shown")
	}
	b := make([]byte, 5)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "below" {
		t.Errorf("the open file has %q, %v", b, err)
	}
	return nil
}

// identity is what stat tells a directory by.
func identity(t *testing.T, dir int, path string) [3]uint64 {
	t.Helper()
	var st unix.Statx_t
	if err := unix.Statx(dir, path, 0, unix.STATX_INO, &st); err != nil {
		t.Error(err)
	}
	return [3]uint64{uint64(st.Dev_major), uint64(st.Dev_minor), st.Ino}
}
