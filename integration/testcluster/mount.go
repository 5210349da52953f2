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

// Mounted is a node's client as the kernel shows it, in this process. Who uses
// it does not map its files and enters it with no child (exec.Cmd.Dir): in both
// a thread would wait for an answer where Go's scheduler cannot see it. A
// shell's cd and a child's own mapping are safe.
type Mounted struct {
	*mount.Mount
	Node    int
	Scratch string // the live realm
	Data    string // the sealed realm

	gone sync.Once
}

// NeedFUSE skips where the machine cannot mount.
func NeedFUSE(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	_ = f.Close() // nothing was done with it
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("fusermount3"); err != nil {
			t.Skip("mounting needs root or fusermount3")
		}
	}
}

// Mount mounts the given nodes until the test ends, whatever still uses the
// mounts then; to leave one in use is a failure of the test. No name means all
// nodes.
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

// unmount waits for the last user for a while.
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

// Abort ends all that goes on in the mount with an error, and takes it away, as
// the death of the process that serves it does.
func (m *Mounted) Abort() {
	m.gone.Do(func() {
		m.abort()
		m.Wait()
	})
}

func (m *Mounted) abort() {
	_ = unix.Unmount(m.Dir(), unix.MNT_FORCE) // EBUSY, but it has aborted the connection
	_ = unix.Unmount(m.Dir(), unix.MNT_DETACH)
}

// watch takes the mounts away when the process $1 is gone, a zombie, or has a
// SIGKILL that it cannot take (bit 8 of its pending signals): a thread of its
// own that waits for an answer of the mount keeps a killed process, and with it
// the connection, for ever.
const watch = `pid=$1; shift
while read -r _ _ s _ </proc/$pid/stat 2>/dev/null && [ "$s" != Z ] && [ "$s" != X ] &&
	! grep -q '^S[a-z]*Pnd:.*[13579bdf]..$' /proc/$pid/status; do sleep 0.5; done
for d; do umount -f "$d"; umount -l "$d" || fusermount3 -uz "$d"; done`

// guard takes the mounts away if this process dies before it does.
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
