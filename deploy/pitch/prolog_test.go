package pitch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/deploy/mounts"
)

// ctxOf returns a context for cleanups, when the test's own context has ended.
func ctxOf(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

func TestJobLivesAndLeaves(t *testing.T) {
	n := newNode(t, wellBehaved)
	n.pitched()
	s := n.seen()
	if s.UID != nobody || s.GID != nobody || s.Umask != 0 || s.Files < hardFiles(t) || s.Core != 0 || !s.Session {
		t.Errorf("the daemon finds itself to be %+v", s)
	}
	if len(s.Groups) == 0 || slices.Contains(s.Groups, 0) {
		t.Errorf("the daemon's groups are %v", s.Groups)
	}
	if slices.ContainsFunc(s.Env, func(v string) bool { return !strings.HasPrefix(v, "PATH=") && !strings.HasPrefix(v, "LANG=") }) {
		t.Errorf("the daemon's environment is %v", s.Env)
	}
	wantMount(t, n)
	keeper, daemon := n.keeper(), n.daemon()
	if !keeper.alive() || !daemon.alive() {
		t.Fatal("keeper or daemon is not alive")
	}
	if got := n.prolog(); got != exitOK || n.starts() != 1 {
		t.Errorf("a second Prolog = %d, %d daemons", got, n.starts())
	}
	if got := n.epilog(); got != exitOK || n.said.Len() > 0 {
		t.Errorf("Epilog = %d, said %q", got, n.said.String())
	}
	n.clean()
	if keeper.alive() || daemon.alive() {
		t.Error("a process is left")
	}
	if exists(n.place().log()) {
		t.Error("the log of a clean job is left")
	}
	if got := n.epilog(); got != exitOK {
		t.Errorf("a second Epilog = %d", got)
	}
}

func hardFiles(t *testing.T) uint64 {
	t.Helper()
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	return min(lim.Max, 1<<20)
}

// wantMount checks the mount both as the user and as another user.
func wantMount(t *testing.T, n *node) {
	t.Helper()
	at, err := mounts.At(n.place().mount())
	if err != nil || len(at) != 2 || at[0].FSType != fuseType || at[1].FSType != fuseType { // the backstop and the daemon's
		t.Fatalf("mounts = %v, %v", at, err)
	}
	st, err := os.Stat(n.place().mount())
	if err != nil || st.Mode().Perm() != 0o700 || st.Sys().(*syscall.Stat_t).Uid != nobody {
		t.Fatalf("stat = %v, %v", st, err)
	}
	cmd := exec.Command("/bin/sh", "-c", "cd "+n.place().mount())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	if err := cmd.Run(); err == nil {
		t.Error("another user can enter the mount")
	}
}

func TestPrologFailures(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*node)
		want string
	}{
		{"daemon refuses", func(n *node) { n.ask(map[string]string{"seed": refuses}) }, "host node9 did not answer"},
		{"daemon dies", func(n *node) { n.ask(map[string]string{"seed": diesAtStart}) }, "exit status 3"},
		{"daemon is late", func(n *node) { n.ask(map[string]string{"seed": neverReady, "start-timeout": "1"}) }, "not ready in time"},
		{"forged spec", func(n *node) { n.vars[specVar] = "eyJ2IjoxLCJ4IjoxfQ" }, "options are damaged"},
		{"not in the list", func(n *node) { n.vars["SLURMD_NODENAME"] = "node2" }, "not in the job's node list"},
		{"bad list", func(n *node) { n.vars["SLURM_JOB_NODELIST"] = "node[1" }, "node list"},
		{"no uid", func(n *node) { n.vars["SLURM_JOB_UID"] = "root" }, "not a number"},
		{"unknown user", func(n *node) { n.vars["SLURM_JOB_UID"] = "3999999999" }, "groups of uid 3999999999"},
		{"no key", func(n *node) { n.site.Munge = MungeOff; n.vars["SLURM_JOB_NODELIST"] = "node[1-2]" }, "no job key"},
		{"bad key", func(n *node) { n.vars[keyVar] = "123" }, "not 64 hex digits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, wellBehaved)
			c.edit(n)
			if got := n.prolog(); got != exitOK {
				t.Errorf("Prolog = %d", got)
			}
			contains(t, "the state", n.failed(), c.want)
			contains(t, "what was said", n.said.String(), c.want)
			if strings.Count(n.said.String(), "\n") != 1 {
				t.Errorf("said %q, want one line", n.said.String())
			}
			if !n.keeper().alive() {
				t.Error("no keeper keeps the state")
			}
		})
	}
}

func TestSickNode(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*node)
		want string
	}{
		{"store missing", func(n *node) { _ = os.Remove(n.site.Store[1]) }, "no such file"},
		{"store is a file", func(n *node) {
			_ = os.Remove(n.site.Store[1])
			_ = os.WriteFile(n.site.Store[1], nil, 0o600)
		}, "not a directory"},
		{"store read-only", func(n *node) { tmpfs(n, "ro") }, "read-only"},
		{"store full", func(n *node) { tmpfs(n, "size=1M") }, "is full"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, wellBehaved)
			c.edit(n)
			if got := n.prolog(); got != exitNodeFault {
				t.Errorf("Prolog = %d, want %d", got, exitNodeFault)
			}
			contains(t, "what was said", n.said.String(), c.want)
			n.clean()
		})
	}
}

// tmpfs mounts a tmpfs as the second store.
func tmpfs(n *node, options string) {
	n.t.Helper()
	flags := uintptr(0)
	if options == "ro" {
		flags, options = unix.MS_RDONLY, ""
	}
	if err := unix.Mount("tmpfs", n.site.Store[1], "tmpfs", flags, options); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := unix.Unmount(n.site.Store[1], unix.MNT_DETACH); err != nil {
			n.t.Error(err)
		}
	})
}

func TestNoBivouacNoWork(t *testing.T) {
	site := DefaultSite()
	site.Run = t.TempDir()
	env := Env{Getenv: func(k string) string { return map[string]string{"SLURM_JOB_ID": "5"}[k] }}
	if got := Prolog(t.Context(), env, site); got != exitOK {
		t.Errorf("Prolog = %d", got)
	}
	if got := Epilog(t.Context(), env, site); got != exitOK {
		t.Errorf("Epilog = %d", got)
	}
}

func TestRequeue(t *testing.T) {
	n := newNode(t, wellBehaved)
	n.pitched()
	first := n.keeper()
	n.vars["SLURM_RESTART_COUNT"] = "1"
	n.pitched()
	if first.alive() || !n.keeper().alive() {
		t.Error("the keeper of the first start lives, or that of the second does not")
	}
	if s := n.seen(); s.Restart != 1 || s.Starts != 1 {
		t.Errorf("the daemon finds itself to be %+v", s)
	}
	if got := n.place().allStores(); len(got) != 2 || !strings.HasSuffix(got[0], "17.1") {
		t.Errorf("stores = %v", got)
	}
}

func TestTwoJobsOnANode(t *testing.T) {
	a := newNode(t, wellBehaved)
	a.pitched()
	b := &node{t: t, site: a.site, vars: map[string]string{}}
	for k, v := range a.vars {
		b.vars[k] = v
	}
	b.vars["SLURM_JOB_ID"] = "18"
	b.pitched()
	if a.seen().KeyHash == b.seen().KeyHash {
		t.Error("two jobs have one key")
	}
	if got := b.epilog(); got != exitOK {
		t.Errorf("Epilog = %d, said %q", got, b.said.String())
	}
	a.wantState(State{Ready, a.place().mount()})
	wantMount(t, a)
}

func TestEpilogTellsTrouble(t *testing.T) {
	n := newNode(t, complains)
	n.pitched()
	if got := n.epilog(); got != exitOK {
		t.Errorf("Epilog = %d", got)
	}
	contains(t, "what was said", n.said.String(), "trouble 3 files were not copied")
	if !exists(n.place().log()) {
		t.Error("the log of a job with trouble is gone")
	}
	n.clean()
}

func TestEpilogIsBounded(t *testing.T) {
	for name, behaviour := range map[string]string{"never leaves": neverLeaves, "hangs": hangs} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, behaviour)
			n.site.FailureTimeout = Seconds(45 * time.Second)
			n.site.EpilogTimeout = Seconds(time.Second)
			n.pitched()
			began := time.Now()
			if got := n.epilog(); got != exitOK {
				t.Errorf("Epilog = %d, said %q", got, n.said.String())
			}
			contains(t, "what was said", n.said.String(), "had not finished at the deadline")
			if d := time.Since(began); d > 40*time.Second {
				t.Errorf("Epilog took %v", d)
			}
			n.clean()
		})
	}
}

func TestEpilogWithoutKeeper(t *testing.T) {
	for _, c := range []struct {
		name string
		kill func(*node)
	}{
		{"keeper killed", func(n *node) { _ = unix.Kill(n.keeper().pid, unix.SIGKILL) }},
		{"keeper stopped", func(n *node) { _ = unix.Kill(n.keeper().pid, unix.SIGSTOP) }},
		{"daemon stopped, keeper killed", func(n *node) {
			_ = unix.Kill(n.daemon().pid, unix.SIGSTOP)
			_ = unix.Kill(n.keeper().pid, unix.SIGKILL)
		}},
		{"record damaged", func(n *node) {
			_ = unix.Kill(n.keeper().pid, unix.SIGKILL)
			_ = os.WriteFile(n.place().recordFile(), []byte("{"), 0o600)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, wellBehaved)
			n.pitched()
			daemon := n.daemon()
			c.kill(n)
			if got := n.epilog(); got != exitOK {
				t.Errorf("Epilog = %d, said %q", got, n.said.String())
			}
			n.clean()
			if daemon.alive() {
				t.Error("the daemon is left")
			}
		})
	}
}

func TestReap(t *testing.T) {
	n := newNode(t, wellBehaved)
	n.pitched()
	daemon, keeper := n.daemon(), n.keeper()
	_ = unix.Kill(keeper.pid, unix.SIGKILL)
	soon(t, "the daemon has died with its keeper", func() bool { return !daemon.alive() && !keeper.alive() })
	// A node that lost power: only data on disk remains.
	if err := os.Mkdir(n.site.Store[0]+"/99.3", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.site.Store[0]+"/keep", 0o700); err != nil {
		t.Fatal(err)
	}
	n.vars["SLURM_JOB_ID"] = "18"
	n.pitched()
	contains(t, "what was said", n.said.String(), "removed the remains of job 17, 99")
	if got := jobsOn(n.site); !slices.Equal(got, []string{"18"}) {
		t.Errorf("jobs = %v, want 18", got)
	}
	if !exists(n.site.Store[0] + "/keep") {
		t.Error("what is not a job's was removed")
	}
}

func TestLeftoverIsTold(t *testing.T) {
	n := newNode(t, wellBehaved)
	n.site.MetricsTextfile = t.TempDir()
	socket, next := listenSyslog(t)
	n.syslog = socket
	n.pitched()
	soon(t, "the metrics are there", func() bool { return exists(n.place().textfile()) })
	busy := filepath.Join(n.site.MetricsTextfile, "bivouac_17.prom.new")
	if err := os.MkdirAll(busy+"/busy", 0o700); err != nil {
		t.Fatal(err)
	}
	if got := n.epilog(); got != exitNodeFault {
		t.Errorf("Epilog = %d, want %d", got, exitNodeFault)
	}
	contains(t, "what was said", n.said.String(), "could not remove")
	contains(t, "syslog", next(), "job 17: could not remove: ")
	if err := os.RemoveAll(busy); err != nil {
		t.Fatal(err)
	}
}

// TestUserMounts: FUSE filesystems that a user has mounted, and whose server does not answer, neither drain the node
// nor block root. The user's kept data stays.
func TestUserMounts(t *testing.T) {
	n := newNode(t, wellBehaved)
	n.site.Keep = Seconds(time.Hour)
	n.pitched()
	store, keep := n.place().stores(0)[0], filepath.Join(n.place().stores(0)[1], chunkstore.KeepDir)
	objects := filepath.Join(store, "objects")
	for _, d := range []string{objects, keep, filepath.Join(keep, "set")} {
		if err := errors.Join(os.Mkdir(d, 0o700), os.Chown(d, nobody, nobody)); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{objects, objects, store, filepath.Join(keep, "set"), keep, n.place().ctl(), n.place().mount()} {
		dev, err := mountFuse(d, nobody, nobody)
		if err != nil {
			t.Fatal(err)
		}
		hung := time.AfterFunc(time.Minute, func() { _ = dev.Close() }) // requests fail from then on
		defer func() {
			hung.Stop()
			_ = dev.Close() // the timer may have closed it
		}()
	}
	if got := n.epilog(); got != exitOK {
		t.Errorf("Epilog = %d, said %q", got, n.said.String())
	}
	if names, err := os.ReadDir(n.site.Store[1]); err != nil || len(names) != 1 || !strings.HasPrefix(names[0].Name(), ".kept.") {
		t.Errorf("what is kept is %v, %v", names, err)
	}
	n.site.Keep = 0
	expireKept(t.Context(), n.site)
	under, err := mounts.Under(filepath.Dir(n.site.Mount))
	if err != nil || len(under) > 0 {
		t.Errorf("mounts are left: %v, %v", under, err)
	}
	for _, s := range n.site.Store {
		if names, err := os.ReadDir(s); err != nil || len(names) > 0 {
			t.Errorf("%s has %v, %v", s, names, err)
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	n := newNode(t, wellBehaved)
	n.site.Memory = 512 << 20
	n.pitched()
	log, err := os.ReadFile(n.place().log())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), "memory is not bounded") {
		t.Skip("needs a memory cgroup that can be changed: ", string(log))
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", n.daemon().pid))
	if err != nil || !strings.Contains(string(b), "bivouac-17") {
		t.Errorf("the daemon's cgroups are %q, %v", b, err)
	}
	if got := n.epilog(); got != exitOK {
		t.Errorf("Epilog = %d, said %q", got, n.said.String())
	}
	for _, root := range cgroupRoots {
		if d := cgroupDir(root[0], n.place()); exists(d) {
			t.Errorf("%s is left", d)
		}
	}
}

func TestTermIsLeave(t *testing.T) {
	n := newNode(t, wellBehaved)
	n.pitched()
	k := n.keeper()
	if err := unix.Kill(k.pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	soon(t, "the keeper is gone", func() bool { return !k.alive() })
	n.clean()
}

func TestJobIsOver(t *testing.T) {
	n := newNode(t, leavesItself)
	n.pitched()
	k := n.keeper()
	soon(t, "the keeper is gone", func() bool { return !k.alive() })
	n.clean()
}

func TestKilledPrologIsTakenUp(t *testing.T) {
	n := newNode(t, wellBehaved)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = Prolog(ctx, n.env(), n.site) // killed immediately
	n.pitched()
	if _, err := ReadState(n.site, "../17"); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReadState of a path = %v", err)
	}
}

// TestEpilogAtAnyTime runs the epilog while the keeper is still starting.
func TestEpilogAtAnyTime(t *testing.T) {
	n := newNode(t, wellBehaved)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 15 {
		if got := Prolog(gone, n.env(), n.site); got != exitOK {
			t.Fatalf("Prolog = %d, said %q", got, n.said.String())
		}
		late := time.Now().Add(time.Duration(2*i) * time.Millisecond)
		soon(t, "it is time", func() bool { return time.Now().After(late) })
		began := time.Now()
		if got := n.epilog(); got != exitOK {
			t.Fatalf("Epilog = %d, said %q", got, n.said.String())
		}
		if d := time.Since(began); d > 15*time.Second {
			t.Fatalf("Epilog %d took %v, said %q", i, d, n.said.String())
		}
		n.clean()
	}
}

// TestClockIsSet: the clock of a freshly booted node is set, by years, while the prolog runs; the keeper gets the same
// time as otherwise.
func TestClockIsSet(t *testing.T) {
	for _, years := range []int{-1, 0, 56} {
		n := newNode(t, wellBehaved)
		if err := os.MkdirAll(n.site.Run, 0o755); err != nil {
			t.Fatal(err)
		}
		p := &prolog{env: n.env(), site: n.site, place: n.place(), began: time.Now().AddDate(years, 0, 0), up: uptime()}
		p.limit = time.Duration(n.site.StartTimeout)
		rec, err := p.plan()
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(rec.until()); left <= 0 || left > p.limit {
			t.Errorf("after %d years the keeper has %v of %v", years, left, p.limit)
		}
	}
}
