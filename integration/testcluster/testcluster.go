// Package testcluster runs the daemons of a job in one process, with mounts where a test wants them, over a network
// whose links a test can cut. Its one idea is that the seams by which the program is wired (a listener, a Dialer, a
// stub of another node's data) suffice to run a whole job in a unit test under the race detector.
//
// Jobs share nothing, so tests run in parallel, except tests of process-wide counts or limits (goroutines, the heap),
// of a time or rate, and of messages at the end of a job, which are dropped after a few reports.
package testcluster

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	daemonout "github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// Patience bounds the wait for an expected event; it is no measure of speed.
const Patience = time.Minute

// Config holds the settings that a test may change.
type Config struct {
	Nodes    int // default 4
	Capacity int64
	Window   int64
	// Rate and ServeRate are passed to daemon.Job.
	Rate, ServeRate int64
	VerifyReads     bool        // passed to daemon.Job
	Protect         secure.Mode // passed to daemon.Job
	Memory          int64
	// Tamper is the function for Cluster.Tamper, set for all nodes from the start.
	Tamper func(to int, conn net.Conn) net.Conn
	// Disk returns the file system for a node's file data; nil is the machine's.
	Disk func(node int) chunkstore.FS
	// Store returns the store directories of a node; nil is a temporary one.
	Store    func(node int) []string
	Source   source.FS                // shared by all nodes
	SourceOf func(node int) source.FS // one per node, instead of Source
	Datasets []job.Dataset
	StageOut []job.StageOut
	Piece    int64  // bytes of a large file that a node copies out as one task
	WorkDir  string // of the job
	Timing   daemon.Timing
	SplitAt  int      // entries from which a directory is spread over nodes; 0 is the default
	Switches []string // switches of the nodes; nil: not known
}

// Cluster is a running job.
type Cluster struct {
	Nodes []*Node
	Key   rpc.Key
	Addrs []string
	cfg   Config
	links *links
}

// Node is a daemon with its client.
type Node struct {
	*daemon.Daemon
	Client *fsclient.Client
	Job    *job.File
	// Prefetch is passed to mount.Config in later mounts.
	Prefetch func(metadata.DatasetID) mount.Prefetch
	dir      string
	log      *logrus.Entry
	mounts   []*Mounted
	closed   sync.Once
}

// stop closes the daemon, once.
func (n *Node) stop(t testing.TB) {
	n.closed.Do(func() {
		if n.Client != nil {
			n.Client.Close()
		}
		if err := n.Close(); err != nil {
			t.Errorf("close of node %d: %v", n.Job.Self, err)
		}
	})
}

// Start starts a job, which ends with the test, and waits until all nodes are up.
func Start(t testing.TB, cfg Config) *Cluster {
	t.Helper()
	if cfg.Nodes == 0 {
		cfg.Nodes = 4
	}
	if cfg.Timing == (daemon.Timing{}) {
		// A live node may have to wait long for a processor that others use.
		cfg.Timing = daemon.Timing{Report: 30 * time.Millisecond, Down: 4 * time.Second, Sweep: 20 * time.Millisecond}
	}
	c := &Cluster{cfg: cfg, links: &links{cut: make(map[int]bool), conns: make(map[int][]net.Conn), tamper: make(map[int]func(int, net.Conn) net.Conn)}}
	for i := range cfg.Nodes {
		c.links.tamper[i] = cfg.Tamper
	}
	copy(c.Key[:], "a job key for tests, 32 bytes long")
	listeners := make([]net.Listener, cfg.Nodes)
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = l
		c.Addrs = append(c.Addrs, l.Addr().String())
	}
	dir := t.TempDir()
	for i, l := range listeners {
		c.Nodes = append(c.Nodes, c.start(t, i, filepath.Join(dir, strconv.Itoa(i)), l))
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for _, n := range c.Nodes {
		n.SetReady()
	}
	for i, n := range c.Nodes {
		if err := n.WaitUp(ctx); err != nil {
			t.Fatalf("node %d: %v", i, err)
		}
	}
	return c
}

func (c *Cluster) start(t testing.TB, i int, dir string, l net.Listener) *Node {
	t.Helper()
	cfg := c.cfg
	j := &job.File{
		Version: job.Version, ID: "test", UID: 1000, GID: 1000, Self: metadata.NodeID(i), Capacity: cfg.Capacity,
		Rate: cfg.Rate, ServeRate: cfg.ServeRate, VerifyReads: cfg.VerifyReads, Protect: cfg.Protect,
		Seed: 7, Datasets: cfg.Datasets, StageOut: cfg.StageOut, WorkDir: cfg.WorkDir,
		Dirs: job.Dirs{Store: []string{filepath.Join(dir, "store")}, Run: filepath.Join(dir, "run"), Mount: filepath.Join(dir, "mount")},
	}
	if cfg.Switches != nil {
		j.Switch = cfg.Switches[i]
	}
	if cfg.Store != nil {
		j.Dirs.Store = cfg.Store(i)
	}
	for k, a := range c.Addrs {
		j.Hosts = append(j.Hosts, "host"+strconv.Itoa(k))
		j.Addrs = append(j.Addrs, []string{a})
	}
	log := logrus.New()
	log.SetOutput(t.Output())
	log.SetLevel(logrus.WarnLevel)
	if cfg.SourceOf != nil {
		cfg.Source = cfg.SourceOf(i)
	}
	var disk chunkstore.FS
	if cfg.Disk != nil {
		disk = cfg.Disk(i)
	}
	d, err := daemon.Open(daemon.Config{
		Job: j, Key: c.Key, Listener: &cutListener{l, c.links, i}, Dial: c.links.dialer(i, c.Addrs), Source: cfg.Source, Window: cfg.Window, Memory: cfg.Memory, Disk: disk,
		Log: log.WithField("node", i), Timing: cfg.Timing,
		Meta:    func(caller rpc.Caller) metadata.TxPeer { return remote.NewStore(caller) },
		Data:    func(caller rpc.Caller) datapath.Store { return remote.NewData(caller) },
		Shards:  func(caller rpc.Caller) metadata.Shards { return remote.NewStore(caller) },
		SplitAt: cfg.SplitAt,
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{Daemon: d, Job: j, dir: dir, log: log.WithField("node", i)}
	t.Cleanup(func() { n.stop(t) })
	n.Client, err = fsclient.New(fsclient.Config{
		Self: j.Self, Local: d.Meta(), LocalData: d.Data(), View: d.View, Sealed: d, Replicas: d.Replicas, UID: j.UID, GID: j.GID,
		Log: log.WithField("node", i), Now: time.Now, Run: d.Run(), VerifyReads: j.VerifyReads,
		Meta: func(id metadata.NodeID) metadata.NodeStore { return remote.NewStore(d.Caller(id)) },
		Data: func(id metadata.NodeID) datapath.Store { return remote.NewData(d.Caller(id)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	n.SetClient(n.Client)
	n.SetRevoke(n.Client.Revoke)
	n.Out().SetCopy(func(ctx context.Context, s daemonout.Share) (stageout.Result, error) {
		root, err := n.Client.Resolve(ctx, metadata.RootIno, s.From)
		if err != nil {
			return stageout.Result{}, err
		}
		return stageout.Run(ctx, stageout.Config{
			Store: n.Client, Read: n.Client.ReadFile, Root: root, To: s.To, Self: s.Self, N: s.N, Piece: cfg.Piece,
			Settle: s.Settle, Memory: s.Memory, Help: s.Help, Failed: s.Failed,
		})
	}, func(ctx context.Context, p stageout.Piece) error {
		return stageout.CopyPiece(ctx, n.Client.ReadFile, p)
	})
	return n
}

// Kill ends node i like kill -9: the others are not notified, and its stores keep the current content of their files,
// not what a shutdown would write. Its mounts are aborted.
func (c *Cluster) Kill(t testing.TB, i int) {
	t.Helper()
	c.Cut(i)
	n := c.Nodes[i]
	for _, m := range n.mounts {
		m.Abort()
	}
	image := t.TempDir()
	if err := os.CopyFS(filepath.Join(image, "store"), os.DirFS(filepath.Join(n.dir, "store"))); err != nil {
		t.Fatal(err)
	}
	n.stop(t)
	n.dir = image
}

// Revive restarts node i on the stores that it left, and waits until it answers.
func (c *Cluster) Revive(t testing.TB, i int) *Node {
	t.Helper()
	dir := c.Nodes[i].dir
	c.Nodes[i].stop(t)
	var l net.Listener
	Eventually(t, "the address is free", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", c.Addrs[i])
		return err == nil
	})
	c.Mend(i)
	c.Nodes[i] = c.start(t, i, dir, l)
	c.Nodes[i].SetReady()
	return c.Nodes[i]
}

// Cut breaks all connections of node i and prevents new ones.
func (c *Cluster) Cut(i int) { c.links.set(i, true) }

// Mend undoes Cut.
func (c *Cluster) Mend(i int) { c.links.set(i, false) }

// Tamper wraps the connections that node i makes from now on with fn, and breaks its existing ones; nil is no
// wrapper.
func (c *Cluster) Tamper(i int, fn func(to int, conn net.Conn) net.Conn) {
	c.links.mu.Lock()
	c.links.tamper[i] = fn
	c.links.mu.Unlock()
	c.Cut(i)
	c.Mend(i)
}

// Dataset returns the dataset name once it is sealed or has failed.
func (c *Cluster) Dataset(t testing.TB, node int, name string) cluster.Dataset {
	t.Helper()
	var found cluster.Dataset
	Eventually(t, "dataset "+name+" settles", func() bool {
		for _, ds := range c.Nodes[node].View().Datasets {
			if ds.Name == name && (ds.Phase == cluster.Sealed || ds.Phase == cluster.Failed) {
				found = ds
				return true
			}
		}
		return false
	})
	return found
}

// Eventually polls ok with growing intervals, and fails the test if it stays false for Patience.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	const soon, late = time.Millisecond, 20 * time.Millisecond
	tick := time.NewTicker(soon)
	defer tick.Stop()
	wait := soon
	for end := time.Now().Add(Patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, Patience)
		}
		wait = min(2*wait, late)
		tick.Reset(wait)
	}
}

var errCut = errors.New("the link is cut")

// links records which nodes are cut off, and the connections to break for that.
type links struct {
	mu    sync.Mutex
	cut   map[int]bool       // guarded by mu
	conns map[int][]net.Conn // guarded by mu
	// tamper wraps the connections that a node makes. Guarded by mu.
	tamper map[int]func(to int, conn net.Conn) net.Conn
}

func (l *links) set(i int, cut bool) {
	l.mu.Lock()
	l.cut[i] = cut
	conns := l.conns[i]
	l.conns[i] = nil
	l.mu.Unlock()
	if cut {
		for _, c := range conns {
			_ = c.Close()
		}
	}
}

// pass registers a connection, unless one of its ends is cut off.
func (l *links) pass(c net.Conn, ends ...int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range ends {
		if l.cut[i] {
			_ = c.Close()
			return errCut
		}
	}
	for _, i := range ends {
		l.conns[i] = append(l.conns[i], c)
	}
	return nil
}

func (l *links) tampered(self, to int, c net.Conn) net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if fn := l.tamper[self]; fn != nil {
		return fn(to, c)
	}
	return c
}

func (l *links) dialer(self int, addrs []string) rpc.Dialer {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		for i, a := range addrs {
			if a == addr {
				return l.tampered(self, i, c), l.pass(c, self, i)
			}
		}
		return c, l.pass(c, self)
	}
}

// cutListener accepts nothing while its node is cut off.
type cutListener struct {
	net.Listener
	links *links
	self  int
}

// Accept drops connections while the node is cut off.
func (l *cutListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.links.pass(c, l.self) == nil {
			return c, err
		}
	}
}
