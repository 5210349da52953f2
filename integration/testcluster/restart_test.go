package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	daemonout "github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// put writes a scratch file through a node.
func put(t testing.TB, n *Node, dir metadata.Ino, name string, b []byte, l metadata.Layout) metadata.Attr {
	t.Helper()
	ctx := context.Background()
	f, a, err := n.Client.CreateOpen(ctx, dir, name, metadata.New{Mode: 0o100644, UID: 1000, GID: 1000, Layout: l})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(ctx, b, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(ctx); err != nil {
		t.Fatal(err)
	}
	return a
}

// live reads a scratch file through a node.
func live(n *Node, path string) ([]byte, error) {
	ctx := context.Background()
	ino, err := n.Client.Resolve(ctx, metadata.RootIno, path)
	if err != nil {
		return nil, err
	}
	a, err := n.Client.Getattr(ctx, ino)
	if err != nil {
		return nil, err
	}
	b := make([]byte, a.Size)
	got, err := n.Client.ReadFile(ctx, a, b, 0)
	return b[:got], err
}

// TestKilledNode: a killed node returns with its data: it joins again, and its sealed datasets and its part of
// scratch are readable, on it and from the others. The same holds for the leader, and for all nodes at once.
func TestKilledNode(t *testing.T) {
	t.Parallel()
	m := files(60, 20_000)
	tree := filepath.Join(t.TempDir(), "tree")
	writeTree(t, tree, m)
	c := Start(t, Config{Datasets: []job.Dataset{{Source: tree, Name: "set"}}})
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	big := bytes.Repeat([]byte("scratch."), 700_000)
	for i, n := range c.Nodes {
		put(t, n, metadata.RootIno, fmt.Sprint("f", i), big[i:], metadata.Layout{})
	}
	check := func() {
		t.Helper()
		for i, n := range c.Nodes {
			Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
			for p, want := range m {
				// The first read may still find a connection that has ended.
				Eventually(t, fmt.Sprintf("node %d reads %s", i, p), func() bool {
					got, err := read(context.Background(), n, ds.ID, p)
					if err == nil && !bytes.Equal(got, want) {
						t.Fatalf("node %d: %s: %d bytes, want %d", i, p, len(got), len(want))
					}
					return err == nil
				})
			}
			for k := range c.Nodes {
				if got, err := live(n, fmt.Sprint("f", k)); err != nil || !bytes.Equal(got, big[k:]) {
					t.Fatalf("node %d: f%d: %d bytes, %v, want %d", i, k, len(got), err, len(big)-k)
				}
			}
		}
	}
	up := func(n *Node) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := n.WaitUp(ctx); err != nil {
			t.Fatal(err)
		}
	}
	all := func() bool {
		for _, n := range c.Nodes {
			if len(n.View().Map.Up()) != len(c.Nodes) {
				return false
			}
		}
		return true
	}
	leader := int(c.Nodes[3].Status(context.Background()).Leader)
	for _, i := range []int{3, leader} {
		c.Kill(t, i)
		up(c.Revive(t, i))
		Eventually(t, "all are up", all)
		check()
	}
	for i := range c.Nodes {
		c.Kill(t, i)
	}
	for i := range c.Nodes {
		c.Revive(t, i)
	}
	for _, n := range c.Nodes {
		up(n)
	}
	Eventually(t, "all are up", all)
	check()
}

// slowFS is a source that blocks reads while its gate is shut.
type slowFS struct {
	source.FS
	gate chan struct{} // closed when reads may continue
	seen chan struct{} // receives a value when a read waits; room for many
}

func newSlowFS() *slowFS {
	return &slowFS{FS: source.OS{}, gate: make(chan struct{}), seen: make(chan struct{}, 1024)}
}

func (s *slowFS) Open(path string) (source.File, error) {
	f, err := s.FS.Open(path)
	if err != nil {
		return nil, err
	}
	return slowFile{f, s}, nil
}

type slowFile struct {
	source.File
	s *slowFS
}

// ReadAt lets reads of the first half of a file through.
func (f slowFile) ReadAt(p []byte, off int64) (int, error) {
	if info, err := f.Stat(); err == nil && off > info.Size/8 {
		select {
		case f.s.seen <- struct{}{}:
		default:
		}
		<-f.s.gate
	}
	return f.File.ReadAt(p, off)
}

// slowCluster starts a job whose stage-ins stop in the middle until open is called.
func slowCluster(t *testing.T) (c *Cluster, src string, open func()) {
	t.Helper()
	fsys := newSlowFS()
	var opened bool
	open = func() {
		if !opened {
			opened = true
			close(fsys.gate)
		}
	}
	src = filepath.Join(t.TempDir(), "slow.tar")
	m := files(200, 60_000)
	m[acrossEnds] = bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
	writeTar(t, src, m)
	c = Start(t, Config{Source: fsys})
	t.Cleanup(open) // before the daemons are closed
	return c, src, open
}

func objects(n *Node) int64 {
	s, err := n.Data().Space(context.Background())
	if err != nil {
		return -1
	}
	return s.Objects
}

func shares(n *Node) int { return n.Status(context.Background()).Shares }

// TestCoordinatorDies: if the leader of a stage-in is lost and no node can continue it, because its request is too
// long for the registry, the dataset fails, the other nodes' shares end, and no data of it is left.
func TestCoordinatorDies(t *testing.T) {
	t.Parallel()
	c, src, open := slowCluster(t)
	long := job.Dataset{Source: src, Name: "slow", Options: stagein.Options{Exclude: []source.Name{source.Name(strings.Repeat("x", 64<<10))}}}
	if _, err := daemon.NewCtl(c.Nodes[3].Job.CtlSocket()).StageIn(context.Background(), long); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "bytes have come in", func() bool { return objects(c.Nodes[0])+objects(c.Nodes[1])+objects(c.Nodes[2]) > 0 })
	c.Cut(3)
	ds := c.Dataset(t, 0, "slow")
	if ds.Phase != cluster.Failed || !strings.Contains(ds.Error, "host3") {
		t.Errorf("dataset: %+v", ds)
	}
	open()
	for i, n := range c.Nodes[:3] {
		Eventually(t, fmt.Sprintf("nothing is left on node %d", i), func() bool { return objects(n) == 0 && shares(n) == 0 })
	}
	c.Mend(3)
	Eventually(t, "nothing is left on the node that led", func() bool { return objects(c.Nodes[3]) == 0 && shares(c.Nodes[3]) == 0 })
	Eventually(t, "node 3 is back", func() bool { return len(c.Nodes[0].View().Map.Up()) == 4 })
	// The name is free again, and cut connections are re-established.
	if err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: src, Name: "slow"}); err != nil {
		t.Errorf("stage-in after a failure: %v", err)
	}
}

// TestLeaderChanges: a stage-in survives the loss of the control group's leader if that node has no part in it.
func TestLeaderChanges(t *testing.T) {
	t.Parallel()
	c, src, open := slowCluster(t)
	leader := int(c.Nodes[3].Status(context.Background()).Leader)
	c.Cut(leader)
	Eventually(t, "the leader is given up", func() bool {
		n, _ := c.Nodes[3].View().Map.Node(metadata.NodeID(leader))
		return n.State == cluster.Down
	})
	// A dataset staged while a node is down is complete on the others.
	done := make(chan error, 1)
	go func() {
		done <- c.Nodes[3].StageIn(context.Background(), job.Dataset{Source: src, Name: "slow"})
	}()
	Eventually(t, "bytes have come in", func() bool { return objects(c.Nodes[3]) > 0 })
	c.Mend(leader)
	Eventually(t, "the old leader is back", func() bool {
		n, _ := c.Nodes[3].View().Map.Node(metadata.NodeID(leader))
		return n.State == cluster.Up
	})
	open()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ds := c.Dataset(t, 3, "slow")
	if ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
	for i, n := range c.Nodes {
		Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
		if b, err := read(context.Background(), n, ds.ID, acrossEnds); err != nil || len(b) != 8<<20 {
			t.Errorf("node %d: %d bytes, %v", i, len(b), err)
		}
	}
}

// leaveAll makes the nodes leave, as their keepers do, and returns their errors.
func leaveAll(t *testing.T, c *Cluster, wait time.Duration, nodes ...int) []error {
	t.Helper()
	errs := make([]error, len(nodes))
	done := make(chan struct{}, len(nodes))
	for k, i := range nodes {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			defer cancel()
			errs[k] = c.Nodes[i].Leave(ctx)
			c.Nodes[i].stop(t) // a stopped node no longer answers
			done <- struct{}{}
		}()
	}
	for range nodes {
		select {
		case <-done:
		case <-time.After(Patience):
			t.Error("Leave does not return")
			return errs
		}
	}
	return errs
}

// leaveButOne has all nodes leave; one dies when the others copy. It returns the errors of the others.
func leaveButOne(t *testing.T, c *Cluster, dead int) []error {
	t.Helper()
	stuck := make(chan struct{})
	c.Nodes[dead].Out().SetCopy(func(ctx context.Context, _ daemonout.Share) (r stageout.Result, err error) {
		close(stuck)
		<-ctx.Done()
		return r, ctx.Err()
	}, nil)
	over := make(chan struct{})
	go func() {
		defer close(over)
		leaveAll(t, c, 5*time.Second, dead)
	}()
	var others []int
	for i := range c.Nodes {
		if i != dead {
			others = append(others, i)
		}
	}
	go func() {
		<-stuck
		c.Cut(dead)
	}()
	errs := leaveAll(t, c, Patience/2, others...)
	<-over
	return errs
}

// outCluster starts a job with n files to stage out.
func outCluster(t *testing.T, n int) (c *Cluster, to string) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "out")
	c = Start(t, Config{StageOut: []job.StageOut{{From: "ckpt", To: to}}})
	// On node 0 alone, so that another node can be lost.
	d := dirOn(t, c, 0, "ckpt")
	for i := range n {
		put(t, c.Nodes[i%4], d.Ino, fmt.Sprint("f", i), []byte(fmt.Sprint("checkpoint ", i)), metadata.Layout{Kind: metadata.Local})
	}
	return c, to
}

// dirOn makes the directory name in the root, with node id as its home.
func dirOn(t testing.TB, c *Cluster, id metadata.NodeID, name string) metadata.Attr {
	t.Helper()
	n := c.Nodes[id] // a new directory's home is usually the node that makes it
	ctx := context.Background()
	for i := range 1000 {
		other := fmt.Sprint(name, ".", i)
		a, err := n.Client.Mkdir(ctx, metadata.RootIno, other, metadata.New{Mode: 0o755, UID: 1000, GID: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if a.Ino.Home() == id {
			if _, err := n.Client.Rename(ctx, metadata.Rename{Dir: metadata.RootIno, Name: other, NewDir: metadata.RootIno, NewName: name}); err != nil {
				t.Fatal(err)
			}
			return a
		}
		if err := n.Client.Rmdir(ctx, metadata.RootIno, other); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("no directory was homed on node %d", id)
	return metadata.Attr{}
}

func copied(t *testing.T, to string) int {
	t.Helper()
	es, err := os.ReadDir(to)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return len(es)
}

// TestLeave: all nodes leave, including the leader, and everything is copied.
func TestLeave(t *testing.T) {
	c, to := outCluster(t, 40)
	begin := time.Now()
	for i, err := range leaveAll(t, c, Patience, 0, 1, 2, 3) {
		if err != nil {
			t.Errorf("node %d: %v", i, err)
		}
	}
	if n := copied(t, to); n != 40 {
		t.Errorf("%d files were copied, want 40", n)
	}
	if d := time.Since(begin); d > Patience/2 {
		t.Errorf("it took %v", d)
	}
}

// TestLeaveWithDeadNode: if a node dies after the nodes have met for the leave, the others copy its share.
func TestLeaveWithDeadNode(t *testing.T) {
	c, to := outCluster(t, 40)
	for _, err := range leaveButOne(t, c, 3) {
		if err != nil {
			t.Error(err)
		}
	}
	if n := copied(t, to); n != 40 {
		t.Errorf("%d files were copied, want 40", n)
	}
}

// TestLeaveInTime: a node that leaves alone goes at its deadline, and has copied its share.
func TestLeaveInTime(t *testing.T) {
	c, to := outCluster(t, 40)
	begin := time.Now()
	for _, err := range leaveAll(t, c, 3*time.Second, 1) {
		if err != nil {
			t.Error(err)
		}
	}
	if d := time.Since(begin); d > Patience/2 {
		t.Errorf("it took %v", d)
	}
	if n := copied(t, to); n == 0 || n == 40 {
		t.Errorf("%d files were copied, want a share of 40", n)
	}
}
