// Package soak holds the soak test: on a job of four daemon processes, each in a network namespace, several loads make,
// move, link, write, append, save checkpoints and read a dataset, while daemons are killed with SIGKILL and started
// again on their stores, as a keeper does, or stopped for a while, and links are cut. Its one idea is that each load
// knows what was acknowledged to it: that has to be there, and what was not answered has happened as a whole or not at
// all.
//
// It needs root, ip and /dev/fuse. The seed is printed; -time makes it longer, and with -away some daemons stay dead
// until the others have given their node up.
package soak

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/integration/netcluster"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// patience bounds what has to happen; it is no measure of speed.
const patience = 2 * time.Minute

// testJob is a job of daemon processes with a keeper for each.
type testJob struct {
	t     *testing.T
	bin   string
	key   string
	nodes []*node

	net                       *network
	kills, stops, cuts, fills int // faults so far

	keepers []io.Closer // each ends when it is closed
	wg      sync.WaitGroup
	over    atomic.Bool // it ends

	broken atomic.Bool  // a daemon has ended by itself
	turned atomic.Int64 // when a node has become ready, or a fault has ended, in nanoseconds
	faults atomic.Int64 // that last
	full   atomic.Int64 // operations that failed with ENOSPC
}

// node is a node: its daemon lives several times.
type node struct {
	id    int
	job   *job.File
	file  string // of the job
	log   string
	ready atomic.Bool
	lives atomic.Int64 // that have ended, or are about to
	full  atomic.Int64 // when its drive was last full, in nanoseconds; in the future while it is

	mu  sync.Mutex
	pid int // guarded by mu; of its daemon, 0 when that is dead, or killed
}

// startJob starts a job of n nodes, which ends with the test.
func startJob(t *testing.T, n int) *testJob {
	t.Helper()
	netcluster.NeedRoot(t)
	dir, err := os.MkdirTemp("", "soak") // short: a socket's path is
	if err != nil {
		t.Fatal(err)
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		t.Fatal(err)
	}
	j := &testJob{t: t, bin: netcluster.Binary(t), key: hex.EncodeToString(key)}
	j.net = startNetwork(t, n) // and so it ends last
	t.Cleanup(func() { j.end(dir) })
	makeSet(t, filepath.Join(dir, "source"))
	hosts := make([]string, n)
	for i := range n {
		hosts[i] = "node" + strconv.Itoa(i)
	}
	for i := range n {
		j.nodes = append(j.nodes, newNode(t, i, dir, hosts, j.net.Addrs))
	}
	for _, x := range j.nodes {
		j.keep(x)
	}
	j.settle()
	j.staged()
	return j
}

func newNode(t *testing.T, i int, dir string, hosts []string, addrs [][]string) *node {
	t.Helper()
	home := filepath.Join(dir, hosts[i])
	x := &node{id: i, file: filepath.Join(home, "job.json"), log: filepath.Join(home, "log")}
	x.job = &job.File{
		Version: job.Version, ID: "soak", UID: 0, GID: 0, Hosts: hosts, Self: metadata.NodeID(i), Addrs: addrs,
		Dirs: job.Dirs{
			Store: []string{filepath.Join(home, "drive", "store")}, Run: filepath.Join(home, "run"), Mount: filepath.Join(home, "mnt"),
		},
		Datasets: []job.Dataset{{Source: filepath.Join(dir, "source"), Name: setName}},
		Created:  metadata.TimeOf(time.Now()),
	}
	for _, dir := range []string{x.job.Dirs.Mount, x.drive()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("drive", x.drive(), "tmpfs", 0, fmt.Sprint("size=", driveSize)); err != nil {
		t.Fatal(err)
	}
	if err := x.job.Write(x.file); err != nil {
		t.Fatal(err)
	}
	return x
}

// driveSize is the size of a node's drive, small enough to be filled in a moment.
const driveSize = 256 << 20

// drive is the file system of the node's store, which it has for itself.
func (x *node) drive() string { return filepath.Dir(x.job.Dirs.Store[0]) }

// fill takes all free space of the drive, as another program could. A daemon that then cannot write its metadata ends.
func (x *node) fill() error {
	x.full.Store(math.MaxInt64)
	f, err := os.Create(filepath.Join(x.drive(), "filler"))
	if err != nil {
		return err
	}
	defer f.Close()
	zeros := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(zeros)
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = nil
	}
	return err
}

// free gives the space back.
func (x *node) free() error {
	defer func() { x.full.Store(time.Now().UnixNano()) }()
	return os.Remove(filepath.Join(x.drive(), "filler"))
}

// keep starts the keeper of a node and listens to it as long as the job lasts.
func (j *testJob) keep(x *node) {
	exe, err := os.Executable()
	if err != nil {
		j.t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), keeperOf+"="+x.file, programOf+"="+j.bin, fmt.Sprint(awayOf, "=", *away), wrapOf+"="+strings.Join(j.net.Wraps[x.id], " "))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		j.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		j.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	if _, err := fmt.Fprintln(in, j.key); err != nil {
		j.t.Fatal(err)
	}
	j.keepers = append(j.keepers, in)
	j.wg.Go(func() {
		for r := bufio.NewScanner(out); r.Scan(); {
			j.heard(x, r.Text())
		}
		_ = cmd.Wait() // what it has to say it has said
	})
}

// heard takes a line of a node's keeper. A daemon's end that is not the test's
// doing is an error, unless its drive is full, or was a moment ago.
func (j *testJob) heard(x *node, line string) {
	what, rest, _ := strings.Cut(line, " ")
	pid, _ := strconv.Atoi(rest)
	x.mu.Lock()
	defer x.mu.Unlock()
	switch what {
	case "started":
		x.pid = pid
	case "ready":
		if x.pid == pid {
			j.turned.Store(time.Now().UnixNano())
			x.ready.Store(true)
		}
	case "ended":
		x.ready.Store(false)
		if full := time.Now().Add(-lull).UnixNano() < x.full.Load(); full && x.pid != 0 {
			x.lives.Add(1)
		} else if x.pid != 0 && !j.over.Load() {
			j.t.Errorf("the daemon of node %d has ended by itself", x.id)
			j.broken.Store(true)
		}
		x.pid = 0
	default:
		j.t.Errorf("the keeper of node %d: %s", x.id, line)
		j.broken.Store(true)
	}
}

// kill kills the daemon of a node, if there is one just now.
func (x *node) kill() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	pid := x.pid
	if pid == 0 {
		return false
	}
	x.pid = 0
	x.ready.Store(false)
	x.lives.Add(1)
	return syscall.Kill(pid, syscall.SIGKILL) == nil
}

// lull is how long nodes may not find a daemon that is there again: they try to
// connect to one that was not there every two seconds.
const lull = 3 * time.Second

// moment is the deaths so far, and whether all nodes are ready, and have been for
// a while.
func (j *testJob) moment() (deaths int64, calm bool) {
	calm = j.faults.Load() == 0 && time.Since(time.Unix(0, j.turned.Load())) > lull
	for _, x := range j.nodes {
		calm = calm && x.ready.Load()
		deaths += x.lives.Load()
	}
	return deaths, calm
}

// excused reports whether err may be the answer to an operation that began at a moment: there was a fault meanwhile.
func (j *testJob) excused(err error, deaths int64, calm bool) bool {
	if errors.Is(err, syscall.ENOSPC) {
		j.full.Add(1)
	}
	now, still := j.moment()
	return !calm || !still || now != deaths
}

// ctl talks to the daemon of node i.
func (j *testJob) ctl(i int) *daemon.Ctl { return daemon.NewCtl(j.nodes[i].job.CtlSocket()) }

// settle waits until all nodes are ready, and know that all are up.
func (j *testJob) settle() {
	j.t.Helper()
	j.eventually("all nodes are up", func() error {
		for i, x := range j.nodes {
			if !x.ready.Load() {
				return fmt.Errorf("node %d is not ready", i)
			}
			s, err := j.ctl(i).Status(context.Background())
			if err != nil {
				return err
			}
			for _, n := range s.Nodes {
				if n.State != cluster.Up {
					return fmt.Errorf("node %d: %s is %v", i, n.Host, n.State)
				}
			}
		}
		return nil
	})
}

// whole waits until a check of scratch by node i finds nothing wrong and ok is
// content.
func (j *testJob) whole(i int, ok func(home.CheckResult) error) {
	j.t.Helper()
	j.eventually("scratch is whole", func() error {
		r, err := j.ctl(i).Check(context.Background())
		if err == nil && r.Wrong > 0 {
			err = fmt.Errorf("%d things are wrong: %q", r.Wrong, r.Problems[:min(len(r.Problems), 20)])
		}
		if err == nil {
			err = ok(r)
		}
		return err
	})
}

// eventually polls until ok, and ends the test with its last complaint.
func (j *testJob) eventually(what string, ok func() error) {
	j.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		err := ok()
		if err == nil {
			return
		}
		if j.broken.Load() || time.Now().After(end) {
			j.t.Fatalf("%s: not after %v: %v", what, patience, err)
		}
	}
}

// scratch is a path in scratch as node i sees it.
func (j *testJob) scratch(i int, path string) string {
	return filepath.Join(j.nodes[i].job.Dirs.Mount, "scratch", path)
}

// end ends all daemons, and removes everything. What a failed test leaves behind
// is shown.
func (j *testJob) end(dir string) {
	j.over.Store(true)
	for _, k := range j.keepers {
		_ = k.Close() // which ends it
	}
	j.wg.Wait()
	for _, x := range j.nodes {
		b, err := os.ReadFile(x.log)
		if err == nil && j.t.Failed() {
			j.t.Logf("log of node %d:\n%s", x.id, b[max(0, len(b)-3000):])
		}
	}
	for _, x := range j.nodes {
		if err := unix.Unmount(x.drive(), unix.MNT_DETACH); err != nil {
			j.t.Error(err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		j.t.Error(err)
	}
}
