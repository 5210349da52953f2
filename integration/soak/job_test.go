// Package soak holds the soak test: on a job of four daemon processes, each in a network namespace, several loads
// make, rename, link, write, append, save checkpoints and read a dataset, while daemons are killed with SIGKILL and
// restarted on their stores, as by a keeper, or stopped for a while, links are cut, drives are full, fail or return
// wrong bytes, and clocks are changed. Its one idea is that each load knows its acknowledged operations, whose
// effects must persist; an operation without an answer has happened completely or not at all.
//
// It needs root, ip and /dev/fuse. The seed is printed; -time makes it longer, with -away some daemons stay dead
// until the others have declared their node lost, and with -losses two nodes are lost for good in the end.
//
//	clock_test.go     a wall clock for each node
//	disk_test.go      drives that fail, are full, or return other bytes
//	keeper_test.go    the keeper of a node, a process
//	network_test.go   links
//	fault_test.go     all faults, chosen by the seed
//	losses_test.go    the loss of two nodes
//	evidence_test.go  what a failed run leaves behind
//	verdict_test.go   operations, how their answers are judged, and the sum of a run
//	worker_test.go, appender_test.go, checkpoint_test.go, reader_test.go   the loads
package soak

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
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

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/integration/netcluster"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// patience bounds the wait for an expected event; it is no measure of speed.
const patience = 2 * time.Minute

// testJob is a job of daemon processes, each with a keeper.
type testJob struct {
	t     *testing.T
	bin   string
	key   string
	nodes []*node

	net     *network
	done    map[string]int // faults so far, by kind
	verdict verdict
	seen    evidence

	keepers []io.Closer // each ends when it is closed
	wg      sync.WaitGroup
	over    atomic.Bool // the job is ending

	broken  atomic.Bool  // a daemon has exited by itself
	turned  atomic.Int64 // when a node last became ready, or a fault ended, in nanoseconds
	faults  atomic.Int64 // currently active faults
	damaged atomic.Int64 // odd while dataset files are damaged
}

// node is a node, on which several daemons run in sequence.
type node struct {
	id    int
	job   *job.File
	file  string // of the job
	log   string
	ready atomic.Bool
	lives atomic.Int64 // daemons that have ended, or are about to
	sick  atomic.Int64 // when its drive was last full or failing, in nanoseconds; in the future during such a fault
	since atomic.Int64 // when its daemon became ready, in nanoseconds
	lost  atomic.Bool  // for good
	disk  *disk

	mu    sync.Mutex
	pid   int   // guarded by mu; of its daemon, 0 if dead or killed
	clock int64 // guarded by mu; address of the clock offset in the daemon
}

// startJob starts a job of n nodes, which ends with the test. With verify, reads of its dataset are checked.
func startJob(t *testing.T, n int, verify bool) *testJob {
	t.Helper()
	netcluster.NeedRoot(t)
	dir, err := os.MkdirTemp("", "soak") // short, as socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		t.Fatal(err)
	}
	j := &testJob{t: t, bin: netcluster.Binary(t), key: hex.EncodeToString(key), done: make(map[string]int)}
	j.net = startNetwork(t, n) // and so it ends last
	t.Cleanup(func() { j.end(dir) })
	makeSet(t, filepath.Join(dir, "source"))
	hosts := make([]string, n)
	for i := range n {
		hosts[i] = "node" + strconv.Itoa(i)
	}
	for i := range n {
		j.nodes = append(j.nodes, newNode(t, i, dir, hosts, j.net.Addrs, verify))
	}
	for _, x := range j.nodes {
		j.keep(x)
	}
	j.settle()
	j.staged()
	return j
}

func newNode(t *testing.T, i int, dir string, hosts []string, addrs [][]string, verify bool) *node {
	t.Helper()
	home := filepath.Join(dir, hosts[i])
	x := &node{id: i, file: filepath.Join(home, "job.json"), log: filepath.Join(home, "log")}
	x.job = &job.File{
		Version: job.Version, ID: "soak", UID: 0, GID: 0, Hosts: hosts, Self: metadata.NodeID(i), Addrs: addrs,
		Dirs: job.Dirs{
			Store: []string{filepath.Join(home, "drive", "store")}, Run: filepath.Join(home, "run"), Mount: filepath.Join(home, "mnt"),
		},
		Datasets:    []job.Dataset{{Source: filepath.Join(dir, "source"), Name: setName}},
		VerifyReads: verify,
		Created:     metadata.TimeOf(time.Now()),
	}
	if err := os.MkdirAll(x.job.Dirs.Mount, 0o700); err != nil {
		t.Fatal(err)
	}
	x.disk = newDisk(t, home, i%2 == 1)
	if err := x.job.Write(x.file); err != nil {
		t.Fatal(err)
	}
	return x
}

// keep starts the keeper of a node and reads its messages during the job.
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
		_ = cmd.Wait() // its messages were read
	})
}

// heard handles a line from a node's keeper. A daemon's exit that the test did not cause is an error, unless its
// drive is or was just full or failing.
func (j *testJob) heard(x *node, line string) {
	what, rest, _ := strings.Cut(line, " ")
	var pid int
	var clock int64
	_, _ = fmt.Sscan(rest+" 0", &pid, &clock)
	x.mu.Lock()
	defer x.mu.Unlock()
	j.seen.note("node %d: %s", x.id, line)
	switch what {
	case "started":
		x.pid, x.clock = pid, clock
	case "ready":
		if x.pid == pid {
			now := time.Now().UnixNano()
			j.turned.Store(now)
			x.since.Store(now)
			x.ready.Store(true)
		}
	case "ended":
		x.ready.Store(false)
		if sick := time.Now().Add(-lull).UnixNano() < x.sick.Load(); sick && x.pid != 0 {
			x.lives.Add(1)
		} else if x.pid != 0 && !j.over.Load() {
			j.found(&j.verdict.other, "the daemon of node %d has ended by itself", x.id)
			j.broken.Store(true)
		}
		x.pid = 0
	default:
		j.found(&j.verdict.other, "the keeper of node %d: %s", x.id, line)
		j.broken.Store(true)
	}
}

// kill kills the daemon of a node, if one runs.
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

// lull bounds how long nodes may take to reach a daemon that has returned: they retry an unreachable one every two
// seconds.
const lull = 3 * time.Second

// moment returns the number of deaths so far, and whether all nodes are ready, and have been for a while.
func (j *testJob) moment() (deaths int64, calm bool) {
	calm = j.faults.Load() == 0 && time.Since(time.Unix(0, j.turned.Load())) > lull
	for _, x := range j.nodes {
		calm = calm && (x.ready.Load() || x.lost.Load())
		deaths += x.lives.Load()
	}
	return deaths, calm
}

// ctl returns a client of node i's daemon.
func (j *testJob) ctl(i int) *daemon.Ctl { return daemon.NewCtl(j.nodes[i].job.CtlSocket()) }

// settle waits until all nodes are ready, and all know it.
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

// whole waits until a check of scratch by node i finds no error and ok returns nil.
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
		if err != nil {
			err = fmt.Errorf("%w; open files by node: %v", err, j.open())
		}
		return err
	})
}

// open returns the number of open files of each node's mount.
func (j *testJob) open() []string {
	all := make([]string, len(j.nodes))
	for i := range j.nodes {
		var s struct{ Client struct{ Open int } }
		b, err := os.ReadFile(filepath.Join(j.nodes[i].job.Dirs.Mount, ".bivouac", "stats"))
		if err == nil {
			err = json.Unmarshal(b, &s)
		}
		if all[i] = strconv.Itoa(s.Client.Open); err != nil {
			all[i] = err.Error()
		}
	}
	return all
}

// eventually polls until ok returns nil, else fails the test with its last error.
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
			j.verdict.other.Add(1)
			j.t.Fatalf("%s: not after %v: %v", what, patience, err)
		}
	}
}

// scratch returns a path in scratch on node i.
func (j *testJob) scratch(i int, path string) string {
	return filepath.Join(j.nodes[i].job.Dirs.Mount, "scratch", path)
}

// end ends all daemons, and removes everything. It shows the leftovers of a failed test.
func (j *testJob) end(dir string) {
	j.over.Store(true)
	for _, k := range j.keepers {
		_ = k.Close() // this ends it
	}
	j.wg.Wait()
	if j.t.Failed() {
		j.keepEvidence()
	}
	for _, x := range j.nodes {
		b, err := os.ReadFile(x.log)
		if err == nil && j.t.Failed() {
			j.t.Logf("log of node %d:\n%s", x.id, b[max(0, len(b)-3000):])
		}
	}
	for _, x := range j.nodes {
		if err := x.disk.end(); err != nil {
			j.t.Error(err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		j.t.Error(err)
	}
}
