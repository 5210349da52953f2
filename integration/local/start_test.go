package local

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	deploy "github.com/bivouacfs/bivouac/deploy/local"
)

// started waits until a running up has started its nth daemon, and returns that daemon.
func (c *camp) started(n int) deploy.Node {
	c.t.Helper()
	var node deploy.Node
	eventually(c.t, "a daemon is started", func() bool {
		s, err := deploy.Load(c.dir)
		if err != nil || len(s.Nodes) < n {
			return false
		}
		node = s.Nodes[n-1]
		return node.PID != 0
	})
	return node
}

// TestInterruptedUp: an up that is interrupted during its start leaves nothing.
func TestInterruptedUp(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	moments := map[string]func() bool{
		"it has begun":      func() bool { _, err := os.Stat(filepath.Join(c.dir, ".bivouac")); return err == nil },
		"a daemon runs":     func() bool { return len(processes(t, c.dir)) > 0 },
		"a mount is there":  func() bool { return len(c.mounted(c.dir)) > 0 },
		"all mounts are up": func() bool { return len(c.mounted(c.dir)) == 4 },
	}
	for what, reached := range moments {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			r := c.start("up", "--dir", c.dir)
			eventually(t, what, reached)
			if err := r.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			c.failed(c.finish(r), "interrupted")
			c.gone(c.dir)
		}
	}
}

// TestKilledUp: down removes everything that a killed up leaves.
func TestKilledUp(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	for n := 1; n <= 4; n++ {
		r := c.start("up", "--dir", c.dir)
		c.started(n)
		if err := r.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		c.finish(r)
		c.ok("down", "--dir", c.dir)
		c.gone(c.dir)
	}
}

// TestKilledWhileUp: if a daemon is killed during its start, up fails.
func TestKilledWhileUp(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	for _, n := range []int{1, 3} {
		r := c.start("up", "--nodes", "3", "--dir", c.dir)
		node := c.started(n)
		if err := syscall.Kill(node.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		c.failed(c.finish(r), node.Host+": the daemon ended while it started")
		c.gone(c.dir)
	}
}

// TestSilentHost: up names a host that does not answer before the timeout.
func TestSilentHost(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	r := c.start("up", "--dir", c.dir, "--timeout", "2s")
	node := c.started(4)
	if err := syscall.Kill(node.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.failed(c.finish(r), node.Host, "did not answer within 2s")
	c.gone(c.dir)
}

// TestNoFuse: a kernel without FUSE.
func TestNoFuse(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	c.enter("mount -t tmpfs none /dev")
	c.fails([]string{"/dev/fuse", "modprobe fuse"}, "up", "--dir", c.dir)
	c.gone(c.dir)
}

// TestNoRights: a /dev/fuse that this user may not open, and the consequences.
func TestNoRights(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	c.enter(ownFuse + "; chmod 600 /dev/fuse")
	c.nobody()
	c.fails([]string{"/dev/fuse", "permission denied"}, "up", "--nodes", "1", "--dir", c.dir)
	c.gone(c.dir)
	if out := c.sh("ls -A $HOME"); strings.Contains(out, "job") {
		t.Errorf("left: %s", out)
	}
}
