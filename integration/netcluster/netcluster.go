// Package netcluster runs a job of several nodes as processes on this machine,
// each in its own network namespace, joined by a bridge that lives in a
// namespace too, so that a link can be cut and nothing of the host's network
// is touched. Its one idea is that only the network is made: the job itself is
// started as bivouac up starts it.
//
// It needs root, iproute2 and /dev/fuse; Start skips the test where one is
// missing.
package netcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/local"
)

// Cluster is a running job.
type Cluster struct {
	Dir   string
	Nodes []local.Node
	net   *network
}

// Binary is the bivouac program that the tests run: $BIVOUAC_BIN, or what make
// build has built.
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
func Start(t testing.TB, n int, datasets ...daemon.DatasetSpec) *Cluster {
	t.Helper()
	NeedRoot(t)
	nw := startNetwork(t, n)
	cfg := local.Config{
		Dir: filepath.Join(t.TempDir(), "job"), Nodes: n, Program: Binary(t), Addrs: nw.addrs(), Wrap: nw.wrap,
		Datasets: datasets,
	}
	s, err := local.Up(context.Background(), cfg)
	if err != nil {
		t.Fatalf("up: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logs(t, s)
		}
		if err := local.Down(s.Dir); err != nil {
			t.Errorf("down: %v", err)
		}
	})
	return &Cluster{Dir: s.Dir, Nodes: s.Nodes, net: nw}
}

// logs shows the end of every daemon's log.
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

// Scratch is a path in scratch as node i sees it.
func (c *Cluster) Scratch(i int, elem ...string) string {
	return filepath.Join(append([]string{c.Nodes[i].Mount, "scratch"}, elem...)...)
}

// Data is a path in data as node i sees it.
func (c *Cluster) Data(i int, elem ...string) string {
	return filepath.Join(append([]string{c.Nodes[i].Mount, "data"}, elem...)...)
}

// Ctl talks to the daemon of node i.
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
	c.net.link(t, i, "down")
}

// Mend undoes Cut.
func (c *Cluster) Mend(t testing.TB, i int) {
	t.Helper()
	c.net.link(t, i, "up")
}

// network is n namespaces on a bridge in one more.
type network struct {
	holders []*exec.Cmd // one process keeps each namespace alive; the last has the bridge
}

const port = "7100"

func (nw *network) addrs() [][]string {
	var a [][]string
	for i := range len(nw.holders) - 1 {
		a = append(a, []string{addr(i) + ":" + port})
	}
	return a
}

func addr(i int) string { return "10.91.0." + strconv.Itoa(10+i) }

func (nw *network) pid(i int) string { return strconv.Itoa(nw.holders[i].Process.Pid) }

// wrap stands before the command of node i.
func (nw *network) wrap(i int) []string {
	return []string{"nsenter", "--net=/proc/" + nw.pid(i) + "/ns/net", "--"}
}

func (nw *network) link(t testing.TB, i int, state string) {
	t.Helper()
	nw.run(t, len(nw.holders)-1, "ip", "link", "set", "v"+strconv.Itoa(i), state)
}

func (nw *network) run(t testing.TB, i int, args ...string) {
	t.Helper()
	args = append(nw.wrap(i), args...)
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

func startNetwork(t testing.TB, n int) *network {
	t.Helper()
	nw := &network{}
	for range n + 1 {
		nw.holders = append(nw.holders, hold(t))
	}
	nw.run(t, n, "ip", "link", "add", "br0", "type", "bridge")
	nw.run(t, n, "ip", "link", "set", "br0", "up")
	for i := range n {
		v := "v" + strconv.Itoa(i)
		nw.run(t, n, "ip", "link", "add", v, "type", "veth", "peer", "name", "eth0", "netns", nw.pid(i))
		nw.run(t, n, "ip", "link", "set", v, "master", "br0", "up")
		nw.run(t, i, "ip", "link", "set", "lo", "up")
		nw.run(t, i, "ip", "addr", "add", addr(i)+"/24", "dev", "eth0")
		nw.run(t, i, "ip", "link", "set", "eth0", "up")
	}
	return nw
}

// hold starts a process in a network namespace of its own, and returns when it
// is there. The process is cat: it ends when the test's end of its pipe does.
func hold(t testing.TB) *exec.Cmd {
	t.Helper()
	c := exec.Command("unshare", "--net", "cat")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	t.Cleanup(func() {
		once.Do(func() {
			_ = in.Close()
			_ = c.Wait() // it was there to be ended
		})
	})
	if _, err := fmt.Fprintln(in); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return c
}
