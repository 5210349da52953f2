package pitch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLockedByAUser: any user who can read the run directory can lock it, but that does not block a prolog.
func TestLockedByAUser(t *testing.T) {
	n := newNode(t, wellBehaved)
	if err := os.MkdirAll(n.site.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(n.site.Run)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	n.pitched()
	if st, err := os.Stat(lockPath(n.site.Run)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("what is locked instead: %v, %v", st, err)
	}
}

// TestLogOfAnother: a log left under the same number by a job of another user is not shown to this job's user, nor this
// job's log to the other.
func TestLogOfAnother(t *testing.T) {
	const other, secret = 12345, "what another user's daemon said"
	n := newNode(t, wellBehaved)
	if err := os.MkdirAll(n.site.Log, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.place().log(), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(n.place().log(), other, other); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(n.place().log())
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	n.pitched()
	now, err := os.ReadFile(n.place().log())
	for late := time.Now().Add(time.Minute); err == nil && !strings.Contains(string(now), "ready") && time.Now().Before(late); {
		time.Sleep(time.Millisecond) // the message is written shortly after the event
		now, err = os.ReadFile(n.place().log())
	}
	if err != nil || strings.Contains(string(now), secret) || !strings.Contains(string(now), "ready") {
		t.Errorf("the log of the job is %q, %v", now, err)
	}
	if was, err := os.ReadFile("/proc/self/fd/" + strconv.Itoa(int(old.Fd()))); err != nil || string(was) != secret {
		t.Errorf("the log of the other job is %q, %v", was, err)
	}
}

// TestNothingGetsAway: processes started by a daemon end with it, wherever they hide; so do the processes that those
// started.
func TestNothingGetsAway(t *testing.T) {
	n := newNode(t, getsAway)
	n.pitched()
	var away []process
	for _, name := range []string{"away1", "away2"} {
		b, err := os.ReadFile(filepath.Join(n.place().ctl(), name))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		p := processOf(pid)
		if !p.alive() {
			t.Fatalf("%s, process %d, is not there", name, pid)
		}
		t.Cleanup(p.kill)
		away = append(away, p)
	}
	if got := n.epilog(); got != exitOK || n.said.Len() > 0 {
		t.Errorf("Epilog = %d, said %q", got, n.said.String())
	}
	for _, p := range away {
		if p.alive() {
			t.Errorf("process %v has outlived its job", p)
		}
	}
	n.clean()
}

// leaveOrphans starts processes of several users that leave orphans, kills the orphans that killOrphans finds, and
// prints which orphans are then alive.
func leaveOrphans() int {
	err := adoptOrphans()
	var pids []string
	for _, uid := range []uint32{0, nobody, 100_000, 100_001} {
		cmd := exec.Command("sh", "-c", `sleep 1000 >&- 2>&- & echo $!`)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		pid, e := cmd.Output()
		err = errors.Join(err, e)
		pids = append(pids, strings.TrimSpace(string(pid)))
	}
	err = errors.Join(err, killOrphans(context.Background()))
	for _, s := range pids {
		pid, e := strconv.Atoi(s)
		p := processOf(pid)
		fmt.Println(e == nil && p.alive())
		p.kill()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// TestOrphansOfSubuids: processes that a daemon started under another of its user's user IDs end with it; root's
// processes, which belong to bivouac, stay.
func TestOrphansOfSubuids(t *testing.T) {
	needRoot(t)
	if out, err := exec.Command("/proc/self/exe", "orphans").Output(); err != nil || string(out) != "true\nfalse\nfalse\nfalse\n" {
		t.Errorf("alive are %q, %v, want root's only", out, err)
	}
}

// TestRunVanishes: a keeper that cannot be asked to leave, because its run directory was removed, ends when it has
// nothing to keep.
func TestRunVanishes(t *testing.T) {
	n := newNode(t, refuses)
	if got := n.prolog(); got != exitOK {
		t.Fatalf("Prolog = %d", got)
	}
	n.said.Reset()
	n.failed()
	k := n.keeper()
	if !k.alive() {
		t.Fatal("no keeper keeps the state")
	}
	t.Cleanup(k.kill)
	if err := os.RemoveAll(n.place().run()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := k.gone(ctx); err != nil {
		t.Errorf("the keeper stays: %v", err)
	}
}
