// Package netcluster runs a job of several nodes as processes on this machine, each in its own network namespace,
// joined by a bridge in a further namespace, so that a link can be cut without touching the host's network. Its one
// idea is that only the network is artificial: the job itself is started as by bivouac up.
//
// It needs root, iproute2 and /dev/fuse; Start skips the test if one is missing. The benchmark uses only the network
// (Network).
package netcluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/local"
)

// Cluster is a running job.
type Cluster struct {
	Dir   string
	Nodes []local.Node
	net   *Network
}

// Binary returns the bivouac program that the tests run: $BIVOUAC_BIN, or the one that make build built.
func Binary(t testing.TB) string {
	t.Helper()
	bin := os.Getenv("BIVOUAC_BIN")
	if bin == "" {
		wd, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		bin = filepath.Join(wd, "../../bin/bivouac")
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("no program to test: %v: run make build", err)
	}
	return bin
}

// NeedRoot skips a test that cannot run here, and says why.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip, of the package iproute2")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
}

// Start starts a job of n nodes, which ends with the test.
func Start(t testing.TB, n int, datasets ...job.Dataset) *Cluster {
	t.Helper()
	NeedRoot(t)
	nw, err := NewNetwork(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nw.Close)
	return startOn(t, nw, local.Config{Nodes: n, Datasets: datasets})
}

// startOn starts a job on a network.
func startOn(t testing.TB, nw *Network, cfg local.Config) *Cluster {
	t.Helper()
	cfg.Dir, cfg.Program, cfg.Addrs, cfg.Wrap = filepath.Join(t.TempDir(), "job"), Binary(t), nw.Addrs(), nw.Wrap
	s, err := local.Up(context.Background(), cfg)
	if err != nil {
		t.Fatalf("up: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logs(t, s)
		}
		if _, err := local.Down(s.Dir); err != nil {
			t.Errorf("down: %v", err)
		}
	})
	return &Cluster{Dir: s.Dir, Nodes: s.Nodes, net: nw}
}

// logs shows the end of each daemon's log.
func logs(t testing.TB, s *local.State) {
	t.Helper()
	for _, n := range s.Nodes {
		b, err := os.ReadFile(n.Log)
		if err != nil {
			t.Logf("%s: %v", n.Host, err)
			continue
		}
		t.Logf("log of %s:\n%s", n.Host, b[max(0, len(b)-4000):])
	}
}

// Scratch returns a path in scratch on node i.
func (c *Cluster) Scratch(i int, elem ...string) string {
	return filepath.Join(append([]string{c.Nodes[i].Mount, "scratch"}, elem...)...)
}

// Data returns a path in data on node i.
func (c *Cluster) Data(i int, elem ...string) string {
	return filepath.Join(append([]string{c.Nodes[i].Mount, "data"}, elem...)...)
}

// Ctl returns a client of node i's daemon.
func (c *Cluster) Ctl(i int) *daemon.Ctl { return daemon.NewCtl(c.Nodes[i].Sock) }

// Kill kills the daemon of node i with SIGKILL.
func (c *Cluster) Kill(t testing.TB, i int) {
	t.Helper()
	if err := syscall.Kill(c.Nodes[i].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// Cut takes node i off the network; Mend puts it back.
func (c *Cluster) Cut(t testing.TB, i int) {
	t.Helper()
	c.link(t, i, "down")
}

// Mend undoes Cut.
func (c *Cluster) Mend(t testing.TB, i int) {
	t.Helper()
	c.link(t, i, "up")
}

func (c *Cluster) link(t testing.TB, i int, state string) {
	t.Helper()
	if err := c.net.link(i, state); err != nil {
		t.Fatal(err)
	}
}
