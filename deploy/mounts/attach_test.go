package mounts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAttach: a mount is attached when no process has a directory open, in another mount
// namespace either, whether mounts propagate or not. Open files and working directories do
// not delay it, and go on below it.
func TestAttach(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	for what, propagation := range map[string]uintptr{"private": unix.MS_PRIVATE, "shared": unix.MS_SHARED} {
		for how, check := range map[string]func(*testing.T, *attaching) error{"walked": attachedWhenLeft, "used": attachedOverUse, "hung up": notAttached, "replaced": notAttachedElsewhere} {
			t.Run(what+"/"+how, func(t *testing.T) {
				a := attaching{base: t.TempDir()}
				done := make(chan error, 1) // one answer
				go func() {
					runtime.LockOSThread() // for good: the thread has its own namespace
					done <- a.begin(t, propagation, check)
				}()
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// attaching is a directory upon which a mount is to be attached.
type attaching struct {
	point
	base, set  string
	m          int       // the mount
	was        [3]uint64 // identity of the directory before
	near, talk *os.File
}

func (a *attaching) begin(t *testing.T, propagation uintptr, check func(*testing.T, *attaching) error) error {
	a.set = filepath.Join(a.base, "data", "set")
	for _, do := range []func() error{
		ownNamespace,
		func() error { return unix.Mount("base", a.base, "tmpfs", 0, "") },
		func() error { return unix.Mount("", a.base, "", propagation, "") },
		func() error { return os.MkdirAll(filepath.Join(a.set, "sub"), 0o755) },
		func() error { return os.WriteFile(filepath.Join(a.set, "file"), []byte("below"), 0o644) },
		func() error { return os.WriteFile(filepath.Join(a.base, "data", "beside"), []byte("beside"), 0o644) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	data, err := unix.Open(filepath.Dir(a.set), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	a.point = point{data: data, name: "set", dirs: directories{proc: procfs{}}}
	defer a.close()
	if a.m, err = newMount("tmpfs", [][2]string{{"source", "new"}}); err != nil {
		return err
	}
	defer unix.Close(a.m)
	near, far, err := Talk()
	if err != nil {
		return err
	}
	defer near.Close()
	defer far.Close()
	if a.near, err = near.File(); err != nil {
		return err
	}
	defer a.near.Close()
	a.talk, a.was = far, identity(t, unix.AT_FDCWD, a.set)
	return check(t, a)
}

// start attaches in another thread of the same namespace. The result is ECANCELED if it gave up.
func (a *attaching) start() <-chan error {
	done := make(chan error, 1) // one result
	ns, err := unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		done <- err
		return done
	}
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread has another namespace
		defer unix.Close(ns)
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(ns, unix.CLONE_NEWNS)); err != nil {
			done <- err
			return
		}
		attached, err := a.attachIdle(a.m, a.talk)
		if err == nil && !attached {
			err = unix.ECANCELED
		}
		done <- err
	}()
	return done
}

// hold has a process, in another mount namespace, keep the directory open until release.
func (a *attaching) hold(t *testing.T) (release func(), err error) {
	user := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", "exec sleep 1000 < "+a.set)
	if err := user.Start(); err != nil {
		return nil, err
	}
	release = sync.OnceFunc(func() {
		_ = user.Process.Kill()
		_ = user.Wait() // it was killed
	})
	t.Cleanup(release)
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for range poll.C { // until the shell has opened it
		_, w, err := a.observe()
		if err != nil {
			return nil, err
		}
		w.close()
		if a.dirs.busy(never) {
			break
		}
	}
	return release, nil
}

// never is a stop function for a look that runs to its end.
func never() bool { return false }

func (a *attaching) wantNotYet(t *testing.T, done <-chan error, what string) {
	t.Helper()
	select {
	case err := <-done:
		t.Errorf("attached, or given up, while %s: %v", what, err)
	case <-time.After(4 * firstPause):
	}
	if identity(t, unix.AT_FDCWD, a.set) != a.was {
		t.Errorf("attached while %s", what)
	}
}

// attachedWhenLeft waits for the processes that have the directory open.
func attachedWhenLeft(t *testing.T, a *attaching) error {
	release, err := a.hold(t)
	if err != nil {
		return err
	}
	done := a.start()
	a.wantNotYet(t, done, "a process has the directory open")
	release()
	if err := <-done; err != nil {
		t.Errorf("after the process has ended: %v", err)
	}
	if identity(t, unix.AT_FDCWD, a.set) == a.was {
		t.Error("the mount is not seen")
	}
	return nil
}

// attachedOverUse attaches above an open file and a working directory, which find what they
// found before.
func attachedOverUse(t *testing.T, a *attaching) error {
	user := exec.Command("sh", "-c", "read go; cat file ../beside; /bin/pwd -P; ls sub; ls ../set")
	user.Dir = a.set
	var said strings.Builder
	user.Stdout, user.Stderr = &said, &said
	in, err := user.StdinPipe()
	if err == nil {
		err = user.Start()
	}
	if err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(a.set, "file"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := <-a.start(); err != nil {
		t.Errorf("above an open file and a working directory: %v", err)
	}
	if identity(t, unix.AT_FDCWD, a.set) == a.was {
		t.Error("the mount is not seen")
	}
	if err := errors.Join(in.Close(), user.Wait()); err != nil {
		t.Error(err)
	}
	if want := "belowbeside" + a.set + "\n"; said.String() != want {
		t.Errorf("a script in the directory says %q, want %q", said.String(), want)
	}
	b := make([]byte, 5)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "below" {
		t.Errorf("the open file has %q, %v", b, err)
	}
	return nil
}

// notAttached gives up when the daemon closes its end of the talk.
func notAttached(t *testing.T, a *attaching) error {
	if _, err := a.hold(t); err != nil {
		return err
	}
	done := a.start()
	a.wantNotYet(t, done, "a process has the directory open")
	if err := unix.Shutdown(int(a.near.Fd()), unix.SHUT_WR); err != nil {
		return err
	}
	if err := <-done; !errors.Is(err, unix.ECANCELED) || identity(t, unix.AT_FDCWD, a.set) != a.was {
		t.Errorf("attached although the daemon has hung up: %v", err)
	}
	return nil
}

// notAttachedElsewhere fails if another directory has come in the place of the dataset's.
func notAttachedElsewhere(t *testing.T, a *attaching) error {
	release, err := a.hold(t)
	if err != nil {
		return err
	}
	done := a.start()
	a.wantNotYet(t, done, "a process has the directory open")
	if err := errors.Join(os.RemoveAll(a.set), os.Mkdir(a.set, 0o755)); err != nil {
		return err
	}
	other := identity(t, unix.AT_FDCWD, a.set)
	release()
	if err := <-done; !errors.Is(err, unix.ESTALE) || identity(t, unix.AT_FDCWD, a.set) != other {
		t.Errorf("attached to another directory: %v, want ESTALE", err)
	}
	return nil
}

// identity is what distinguishes a directory for a program.
func identity(t *testing.T, dir int, path string) [3]uint64 {
	t.Helper()
	var st unix.Statx_t
	if err := unix.Statx(dir, path, 0, unix.STATX_INO, &st); err != nil {
		t.Error(err)
	}
	return [3]uint64{uint64(st.Dev_major), uint64(st.Dev_minor), st.Ino}
}

// TestAttachOpened: a look during which a directory was opened does not find the dataset idle.
func TestAttachOpened(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "sub"), 0o755), os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	w, err := watchOpens(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	for name, want := range map[string]bool{".": true, "sub": true, "file": false} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // read only
		if got := w.opened(); got != want {
			t.Errorf("after %s was opened: opened %v, want %v", name, got, want)
		}
		if w.opened() {
			t.Errorf("an open of %s is reported twice", name)
		}
	}
}

// looks replays how long looks take and what they find.
type looks struct {
	clock time.Time
	took  []time.Duration
	found []bool // busy; false after the last
	pause []time.Duration
}

func (l *looks) now() time.Time { return l.clock }

func (l *looks) look() (busy bool) {
	if len(l.took) > 0 {
		l.clock, l.took = l.clock.Add(l.took[0]), l.took[1:]
	}
	if len(l.found) > 0 {
		busy, l.found = l.found[0], l.found[1:]
	}
	return busy
}

func (l *looks) wait(pause time.Duration) bool {
	l.pause, l.clock = append(l.pause, pause), l.clock.Add(pause)
	return true
}

// TestAwaitIdlePauses: looks take at most a fiftieth of a processor, however long they are,
// except that no pause exceeds maxCostPause.
func TestAwaitIdlePauses(t *testing.T) {
	took := []time.Duration{0, 50 * time.Millisecond, time.Second, 0, 2 * time.Second, time.Hour}
	l := looks{took: slices.Clone(took), found: slices.Repeat([]bool{true}, len(took))}
	if !awaitIdle(l.look, l.now, l.wait) {
		t.Fatal("given up")
	}
	least := firstPause
	for i, d := range took {
		if want := max(least, min(lookShare*d, maxCostPause)); l.pause[i] != want {
			t.Errorf("pause of %v after a look of %v, want %v", l.pause[i], d, want)
		}
		least = min(2*least, maxPause)
	}
	if len(l.pause) != len(took)+idleLooks-1 || l.pause[len(took)] != firstPause {
		t.Errorf("pauses %v, want a short one at last, between the idle looks", l.pause)
	}
	busy := looks{found: []bool{true}}
	if awaitIdle(busy.look, busy.now, func(time.Duration) bool { return false }) {
		t.Error("idle, although wait gave up")
	}
}

// TestAwaitIdleConfirms: the second look follows soon, and the cost of both counts if it
// finds a process.
func TestAwaitIdleConfirms(t *testing.T) {
	l := looks{took: []time.Duration{time.Second, time.Second}, found: []bool{false, true}}
	awaitIdle(l.look, l.now, l.wait)
	if want := []time.Duration{firstPause, lookShare * 2 * time.Second, firstPause}; !slices.Equal(l.pause, want) {
		t.Errorf("pauses of %v, want %v", l.pause, want)
	}
}
