package pitch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/job"
)

func TestDaemonKilled(t *testing.T) {
	n := newNode(t, wellBehaved)
	n.pitched()
	first, key := n.daemon(), n.seen().KeyHash
	bare := neverBare(t, n)
	if err := unix.Kill(first.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	soon(t, "there is another daemon", func() bool { return n.starts() == 2 && n.daemon().alive() })
	soon(t, "it answers", func() bool { st, err := os.Stat(n.place().mount()); return err == nil && st.Mode().Perm() == 0o700 })
	bare()
	if s := n.seen(); s.KeyHash != key {
		t.Error("the second daemon has another key")
	}
	n.wantState(State{Ready, n.place().mount()})
	wantMount(t, n)
}

// TestMountSurvives: a daemon is killed while a process waits for its answer. The next daemon answers it, and an
// earlier descriptor still belongs to the current mount. A second death soon after changes nothing; after the third one
// there is a new mount.
func TestMountSurvives(t *testing.T) {
	n := newNode(t, handsOver)
	n.pitched()
	if !resends(t) {
		t.Skip("needs Linux 6.9")
	}
	root, err := os.Open(n.place().mount())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for starts := 2; starts <= 3; starts++ {
		mute, asked := filepath.Join(n.place().ctl(), "mute"), filepath.Join(n.place().ctl(), "asked")
		if err := errors.Join(os.WriteFile(mute, nil, 0o666), os.Chown(mute, nobody, nobody)); err != nil {
			t.Fatal(err)
		}
		answered := make(chan error, 1)
		go func() {
			_, err := root.Stat()
			answered <- err
		}()
		soon(t, "the daemon is asked", func() bool { return exists(asked) })
		if err := errors.Join(os.Remove(asked), unix.Kill(n.daemon().pid, unix.SIGKILL)); err != nil {
			t.Fatal(err)
		}
		if err := <-answered; err != nil {
			t.Errorf("a call in flight when daemon %d was killed: %v", starts-1, err)
		}
		soon(t, "there is another daemon", func() bool { return n.starts() == starts && n.daemon().alive() })
		wantMount(t, n)
		now, err := os.Stat(n.place().mount())
		if was, e := root.Stat(); e != nil || err != nil || !os.SameFile(was, now) {
			t.Errorf("after death %d: the root that was open is %v, %v, the one that is there is %v, %v", starts-1, was, e, now, err)
		}
	}
	if err := unix.Kill(n.daemon().pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	soon(t, "the old mount is gone", func() bool {
		_, err := root.Stat()
		return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
	})
	soon(t, "the new one answers", func() bool { _, err := os.Stat(n.place().mount()); return err == nil })
	wantMount(t, n)
}

// TestOldDeaths: only deaths within the last minute keep the next daemon from taking over the connection.
func TestOldDeaths(t *testing.T) {
	needFuse(t)
	if !resends(t) {
		t.Skip("needs Linux 6.9")
	}
	died := make(chan struct{})
	close(died)
	conn := &connection{dev: hanging(t, t.TempDir()), kept: true}
	for ago, adopted := range map[time.Duration]bool{0: false, deathSpan + time.Second: true} {
		at := time.Now().Add(-ago)
		c := &child{k: &keeper{conn: conn, deaths: []time.Time{at, at}}, died: died}
		if err := c.passOn(); (err == nil) != adopted {
			t.Errorf("after two deaths %v ago: %v", ago, err)
		}
	}
}

// TestHungRequest: a request of a dead daemon that does not end does not block the keeper.
func TestHungRequest(t *testing.T) {
	var said strings.Builder
	log := logrus.New()
	log.SetOutput(&said)
	c := &child{k: &keeper{log: logrus.NewEntry(log)}, left: []string{"mount helper 7 does not die"}}
	c.wg.Add(1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.awaitRequests(time.Millisecond)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the keeper waits for a request that does not end")
	}
	c.wg.Done()
	<-ended
	contains(t, "the log", said.String(), "hangs in the kernel")
	c.awaitRequests(time.Hour)
	if got := c.k.trouble; len(got) != 1 || got[0] != c.left[0] {
		t.Errorf("once all have ended, the trouble is %q, want %q", got, c.left)
	}
}

// TestAdoptionFails: if a daemon cannot take over the mount, the next one gets a new mount.
func TestAdoptionFails(t *testing.T) {
	n := newNode(t, neverAdopts)
	n.pitched()
	if !resends(t) {
		t.Skip("needs Linux 6.9")
	}
	if err := unix.Kill(n.daemon().pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	soon(t, "there is a third daemon", func() bool { return n.starts() == 3 && n.daemon().alive() })
	soon(t, "it answers", func() bool { _, err := os.Stat(n.place().mount()); return err == nil })
	n.wantState(State{Ready, n.place().mount()})
	wantMount(t, n)
}

// resends reports whether the kernel can send requests again.
func resends(t *testing.T) bool {
	t.Helper()
	dir := t.TempDir()
	dev, err := mountFuse(dir, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := connection{dev: dev}
	defer func() {
		if err := errors.Join(dev.Close(), unmount(t.Context(), dir, unmountTime)); err != nil {
			t.Error(err)
		}
	}()
	return conn.resend() == nil
}

// neverBare accesses the root of the mount repeatedly until the returned function is called, which fails if the
// mountpoint below the mount was ever visible.
func neverBare(t *testing.T, n *node) (stop func()) {
	t.Helper()
	var below unix.Stat_t
	if err := unix.Stat(n.site.Mount, &below); err != nil {
		t.Fatal(err)
	}
	end, done := make(chan struct{}), make(chan struct{})
	var asked, bare int
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			default:
			}
			var st unix.Stat_t
			asked++
			if err := unix.Stat(n.place().mount(), &st); err == nil && st.Dev == below.Dev {
				bare++
			}
		}
	}()
	return func() {
		t.Helper()
		close(end)
		<-done
		if bare > 0 {
			t.Errorf("%d of %d calls saw the bare mountpoint", bare, asked)
		}
	}
}

// TestWatchdog lets a process hang on a mount whose daemon is silent, once by itself and once because it was stopped.
// The watchdog releases the process.
func TestWatchdog(t *testing.T) {
	for name, behaviour := range map[string]string{"silent": hangsOnce, "stopped": wellBehaved} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, behaviour)
			n.pitched()
			if name == "stopped" {
				if err := unix.Kill(n.daemon().pid, unix.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("/bin/ls", n.place().mount())
			began := time.Now()
			err := cmd.Run() // hangs until the connection is aborted
			if d := time.Since(began); err == nil || d > 15*time.Second {
				t.Errorf("ls = %v after %v, want an error within the watchdog's time", err, d)
			}
			soon(t, "there is another daemon", func() bool { return n.starts() == 2 })
			soon(t, "it answers", func() bool { st, err := os.Stat(n.place().mount()); return err == nil && st.Mode().Perm() == 0o700 })
			n.wantState(State{Ready, n.place().mount()})
		})
	}
}

func TestRestartsAreBounded(t *testing.T) {
	n := newNode(t, diesAlways)
	n.pitched()
	soon(t, "the keeper gives up", func() bool { s, err := ReadState(n.site, "17"); return err == nil && s.Phase == Failed })
	contains(t, "the state", n.failed(), "exit status 4")
	if got := n.starts(); got != maxDeaths {
		t.Errorf("%d daemons, want %d", got, maxDeaths)
	}
	soon(t, "the mount is dead", func() bool { _, err := os.Stat(n.place().mount()); return errors.Is(err, unix.ENOTCONN) })
	if !n.keeper().alive() {
		t.Error("no keeper keeps the state")
	}
}

// TestStageOutAfterDeath: a daemon that dies as the job ends, or just before, is restarted for the last stage-out;
// without a stage-out it is not.
func TestStageOutAfterDeath(t *testing.T) {
	for _, tt := range []struct {
		name, behaviour string
		before, out     bool
		starts          int
	}{
		{"while it leaves", diesLeaving, false, true, 2},
		{"just before", diesLeaving, true, true, 2},
		{"nothing to copy", diesLeaving, false, false, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, tt.behaviour)
			if tt.out {
				w, err := (&Spec{V: SpecVersion, Opts: map[string]string{"seed": tt.behaviour}, StageOut: []job.StageOut{{From: "out", To: "/tmp"}}}).Encode()
				if err != nil {
					t.Fatal(err)
				}
				n.vars[specVar] = w
			}
			n.pitched()
			if tt.before {
				if err := unix.Kill(n.daemon().pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			run := n.place().run()
			starts := 0
			done := make(chan struct{})
			go func() { // the counted files are removed at the end
				defer close(done)
				for exists(run) {
					starts = max(starts, n.starts())
					time.Sleep(time.Millisecond)
				}
			}()
			if got := n.epilog(); got != exitOK {
				t.Errorf("Epilog = %d", got)
			}
			<-done
			if starts != tt.starts {
				t.Errorf("%d daemons, want %d", starts, tt.starts)
			}
			if tt.starts > 1 {
				contains(t, "what was said", n.said.String(), "3 files were not copied")
			}
			n.clean()
		})
	}
}

// TestTeardownTogether: after a crash, a job's epilog and the next job's prolog can tear the job down concurrently.
func TestTeardownTogether(t *testing.T) {
	for range 5 {
		n := newNode(t, wellBehaved)
		n.pitched()
		for _, p := range []process{n.keeper(), n.daemon()} {
			_ = unix.Kill(p.pid, unix.SIGKILL) // the daemon dies with its keeper
			soon(t, "it is dead", func() bool { return !p.alive() })
		}
		left := make(chan []string)
		for range 2 {
			go func() { left <- teardown(t.Context(), n.place()) }()
		}
		for range 2 {
			if l := <-left; len(l) > 0 {
				t.Errorf("left behind: %q", l)
			}
		}
	}
}
