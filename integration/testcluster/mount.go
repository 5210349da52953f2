package testcluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient/mount"
)

// Mounted is a node's client, mounted by this process. Tests must not map its files or start children in it
// (exec.Cmd.Dir): a thread would block on this process itself, unknown to Go's scheduler. A shell's cd and a child's
// own mapping are safe.
type Mounted struct {
	*mount.Mount
	Node    int
	Scratch string // the live realm
	Data    string // the sealed realm

	gone sync.Once
}

// NeedFUSE skips the test if the machine cannot mount.
func NeedFUSE(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	_ = f.Close() // only opened
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("fusermount3"); err != nil {
			t.Skip("mounting needs root or fusermount3")
		}
	}
}

// Mount mounts the given nodes, or all if none is given, until the test ends. The mounts end even if they are still
// in use, but that fails the test.
func (c *Cluster) Mount(t testing.TB, nodes ...int) []*Mounted {
	t.Helper()
	NeedFUSE(t)
	if len(nodes) == 0 {
		for i := range c.Nodes {
			nodes = append(nodes, i)
		}
	}
	var ms []*Mounted
	for _, i := range nodes {
		ms = append(ms, c.Nodes[i].mount(t, i))
	}
	guard(t, ms)
	return ms
}

func (n *Node) mount(t testing.TB, i int) *Mounted {
	t.Helper()
	dir := t.TempDir()
	m, err := mount.New(mount.Config{
		Client: n.Client, Dir: dir, AllowOther: os.Geteuid() == 0, UID: n.Job.UID, GID: n.Job.GID, Prefetch: n.Prefetch, Log: n.log.WithField("part", "mount"),
	})
	if err != nil {
		t.Fatal(err)
	}
	d := &Mounted{Mount: m, Node: i, Scratch: filepath.Join(dir, "scratch"), Data: filepath.Join(dir, "data")}
	n.mounts = append(n.mounts, d)
	n.SetDropPages(m.DropPages)
	go m.Serve()
	t.Cleanup(func() { d.unmount(t) })
	if err := m.Ready(); err != nil {
		t.Fatal(err)
	}
	return d
}

// unmount waits a while for the last user.
func (m *Mounted) unmount(t testing.TB) {
	m.gone.Do(func() {
		if os.Geteuid() != 0 {
			if err := m.Unmount(); err != nil {
				t.Error(err)
			}
			return
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		err := unix.Unmount(m.Dir(), 0)
		for end := time.Now().Add(10 * time.Second); errors.Is(err, unix.EBUSY) && time.Now().Before(end); <-tick.C {
			err = unix.Unmount(m.Dir(), 0)
		}
		if err != nil {
			t.Errorf("unmount of node %d: %v", m.Node, err)
			m.abort()
		}
		m.Wait()
	})
}

// Abort fails all requests in the mount and removes it, like the death of the process that serves it.
func (m *Mounted) Abort() {
	m.gone.Do(func() {
		m.abort()
		m.Wait()
	})
}

func (m *Mounted) abort() {
	_ = unix.Unmount(m.Dir(), unix.MNT_FORCE) // returns EBUSY, but has aborted the connection
	_ = unix.Unmount(m.Dir(), unix.MNT_DETACH)
}

// watch removes the mounts when process $1 has exited, is a zombie, or has a SIGKILL that it cannot handle (bit 8 of
// its pending signals): if one of its own threads waits for an answer of the mount, a killed process, and with it the
// connection, would stay forever.
const watch = `pid=$1; shift
while read -r _ _ s _ </proc/$pid/stat 2>/dev/null && [ "$s" != Z ] && [ "$s" != X ] &&
	! grep -q '^S[a-z]*Pnd:.*[13579bdf]..$' /proc/$pid/status; do sleep 0.5; done
for d; do umount -f "$d"; umount -l "$d" || fusermount3 -uz "$d"; done`

// guard removes the mounts if this process dies first.
func guard(t testing.TB, ms []*Mounted) {
	t.Helper()
	args := []string{"-c", watch, "guard", strconv.Itoa(os.Getpid())}
	for _, m := range ms {
		args = append(args, m.Dir())
	}
	sh := exec.Command("sh", args...)
	sh.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, m := range ms {
			m.unmount(t)
		}
		_ = unix.Kill(-sh.Process.Pid, unix.SIGKILL)
		_ = sh.Wait() // it was killed
	})
}
