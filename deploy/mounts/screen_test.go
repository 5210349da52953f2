package mounts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

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
	return liftedWhenLeft(t, s, set, was)
}

// liftedWhenLeft lifts a screen, when everybody has left it.
func liftedWhenLeft(t *testing.T, s *screen, set string, was [3]uint64) error {
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

// slow is a screen that is in use until it was looked at as often as looks say how
// long that takes.
type slow struct {
	clock time.Time
	looks []time.Duration
}

func (s *slow) there() bool { return true }

func (s *slow) try(bool) bool {
	if len(s.looks) == 0 {
		return true
	}
	s.clock, s.looks = s.clock.Add(s.looks[0]), s.looks[1:]
	return false
}

// TestScreenRest: looks take no more than a twentieth of a processor, however long they
// are, but for those that would have to be waited for too long.
func TestScreenRest(t *testing.T) {
	s := slow{looks: []time.Duration{0, 50 * time.Millisecond, time.Second, 0, 2 * time.Second, time.Hour}}
	looks := slices.Clone(s.looks)
	var pauses []time.Duration
	done := lift(&s, func() time.Time { return s.clock }, func(pause time.Duration) bool {
		pauses = append(pauses, pause)
		s.clock = s.clock.Add(pause)
		return true
	})
	if !done || len(pauses) != len(looks) {
		t.Fatalf("lifted: %v, after pauses of %v", done, pauses)
	}
	least := screenPause
	for i, pause := range pauses {
		want := max(least, min(19*looks[i], maxRest))
		if pause != want {
			t.Errorf("after a look of %v a pause of %v, want %v", looks[i], pause, want)
		}
		least = min(2*least, maxScreenPause)
	}
	if lift(&slow{looks: looks}, func() time.Time { return s.clock }, func(time.Duration) bool { return false }) {
		t.Error("a screen is lifted when nobody wants that any more")
	}
}
