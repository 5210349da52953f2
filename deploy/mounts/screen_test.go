package mounts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
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
		for how, lifts := range map[string]func(*testing.T, *screened) error{"left": liftedWhenLeft, "rested": liftedOverRest} {
			t.Run(what+"/"+how, func(t *testing.T) {
				s := screened{base: t.TempDir(), clock: time.Now()}
				done := make(chan error, 1) // one answer
				go func() {
					runtime.LockOSThread() // for ever: the thread has left the others
					done <- s.begin(t, propagation, lifts)
				}()
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// screened is a directory behind a screen.
type screened struct {
	screen
	base, set string
	clock     time.Time
	was       [3]uint64 // what the directory was before
}

func (s *screened) begin(t *testing.T, propagation uintptr, lifts func(*testing.T, *screened) error) error {
	s.set = filepath.Join(s.base, "data", "set")
	for _, do := range []func() error{
		ownNamespace,
		func() error { return unix.Mount("base", s.base, "tmpfs", 0, "") },
		func() error { return unix.Mount("", s.base, "", propagation, "") },
		func() error { return os.MkdirAll(filepath.Join(s.set, "sub"), 0o755) },
		func() error { return os.WriteFile(filepath.Join(s.set, "file"), []byte("below"), 0o644) },
		func() error { return os.WriteFile(filepath.Join(s.base, "data", "beside"), []byte("beside"), 0o644) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	data, err := unix.Open(filepath.Dir(s.set), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	m, err := newMount("tmpfs", [][2]string{{"source", "new"}})
	if err != nil {
		return errors.Join(err, unix.Close(data))
	}
	walker, err := os.Open(filepath.Join(s.set, "sub"))
	if err != nil {
		return err
	}
	s.was = identity(t, unix.AT_FDCWD, s.set)
	now := func() time.Time { return s.clock }
	s.screen = screen{data: data, name: "set", hidden: -1, dirs: directories{proc: procfs{}, now: now}}
	defer s.close()
	if err := errors.Join(s.hide(m), unix.Close(m)); err != nil {
		return err
	}
	if got := identity(t, unix.AT_FDCWD, s.set); got != s.was || identity(t, int(walker.Fd()), "..") != s.was {
		t.Errorf("the directory is %v, before it was %v", got, s.was)
	}
	_ = walker.Close() // read only
	return lifts(t, s)
}

// liftedWhenLeft lifts a screen, when everybody has left it.
func liftedWhenLeft(t *testing.T, s *screened) error {
	user := exec.Command("unshare", "--mount", "--propagation", "slave", "sleep", "1000")
	user.Dir = s.set
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
	f, err := os.Open(filepath.Join(s.set, "file"))
	if err != nil {
		return err
	}
	defer f.Close()
	for range 2 * minUnused {
		if s.try(false) {
			t.Error("a plain unmount was done under an open file")
		}
	}
	if !s.there() || identity(t, unix.AT_FDCWD, s.set) != s.was || !s.try(true) || s.there() {
		t.Error("the screen is not lifted when only a file is open")
	}
	if identity(t, unix.AT_FDCWD, s.set) == s.was {
		t.Error("what was hidden is not shown")
	}
	b := make([]byte, 5)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "below" {
		t.Errorf("the open file has %q, %v", b, err)
	}
	return nil
}

// liftedOverRest shows what is hidden although somebody rests in the screen, who has a
// path as before, and finds what is there and beside it.
func liftedOverRest(t *testing.T, s *screened) error {
	user := exec.Command("sh", "-c", "read go; cat file ../beside; /bin/pwd -P; ls sub; ls ../set")
	user.Dir = s.set
	var said strings.Builder
	user.Stdout, user.Stderr = &said, &said
	in, err := user.StdinPipe()
	if err == nil {
		err = user.Start()
	}
	if err != nil {
		return err
	}
	if s.try(true) {
		t.Error("the screen is lifted over who has just come")
	}
	s.clock = s.clock.Add(restTime)
	if s.try(true) || s.try(false) {
		t.Error("the screen is lifted after one look, or by a plain unmount")
	}
	if identity(t, unix.AT_FDCWD, s.set) != s.was || !s.try(true) || s.there() || identity(t, unix.AT_FDCWD, s.set) == s.was {
		t.Error("what was hidden is not shown when somebody rests")
	}
	if err := errors.Join(in.Close(), user.Wait()); err != nil {
		t.Error(err)
	}
	if want := "belowbeside" + s.set + "\n"; said.String() != want {
		t.Errorf("who rests says %q, want %q", said.String(), want)
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

	forced []bool
	almost bool
}

func (s *slow) there() bool { return true }

func (s *slow) nearly() bool { return s.almost }

func (s *slow) try(force bool) bool {
	s.forced = append(s.forced, force)
	if len(s.looks) == 0 {
		return true
	}
	s.clock, s.looks = s.clock.Add(s.looks[0]), s.looks[1:]
	return false
}

// TestScreenRest: looks take no more than a fiftieth of a processor, however long they
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
	least, spent := screenPause, time.Duration(0)
	for i, pause := range pauses {
		want := max(least, min(lookShare*looks[i], maxRest))
		if pause != want {
			t.Errorf("after a look of %v a pause of %v, want %v", looks[i], pause, want)
		}
		least = min(2*least, maxScreenPause)
		if spent += looks[i] + pause; s.forced[i+1] != (spent >= screenTime) {
			t.Errorf("after %v by force: %v", spent, s.forced[i+1])
		}
	}
	if lift(&slow{looks: looks}, func() time.Time { return s.clock }, func(time.Duration) bool { return false }) {
		t.Error("a screen is lifted when nobody wants that any more")
	}
}

// TestScreenRestsNearly: a look that may be the last is soon after the one before, and is
// rested from with it.
func TestScreenRestsNearly(t *testing.T) {
	s := slow{looks: []time.Duration{time.Second, time.Second, 0}, almost: true}
	var pauses []time.Duration
	lift(&s, func() time.Time { return s.clock }, func(pause time.Duration) bool {
		pauses = append(pauses, pause)
		s.almost = false
		return true
	})
	if want := []time.Duration{screenPause, lookShare * 2 * time.Second, 2 * screenPause}; !slices.Equal(pauses, want) {
		t.Errorf("pauses of %v, want %v", pauses, want)
	}
}
