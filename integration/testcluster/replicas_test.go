package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/show"
	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// withReplicas starts a job with a replicated dataset, and waits until all nodes know that all replicas exist.
func withReplicas(t *testing.T, cfg Config, src string, r cluster.Replicas) (*Cluster, cluster.Dataset) {
	t.Helper()
	cfg.Datasets = []job.Dataset{{Source: src, Name: "set", Options: stagein.Options{Replicas: r}}}
	c := Start(t, cfg)
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed || ds.Replicas != r {
		t.Fatalf("dataset: %+v", ds)
	}
	c.awaitReplicas(t)
	return c, ds
}

// awaitReplicas waits until all nodes know that all replicas exist.
func (c *Cluster) awaitReplicas(t *testing.T) {
	t.Helper()
	for i, n := range c.Nodes {
		Eventually(t, fmt.Sprintf("all replicas are made, as node %d knows", i), func() bool {
			all := n.Status(context.Background()).Datasets // none on a node that has just started
			if len(all) == 0 || all[0].Copies == nil {
				return false
			}
			s := all[0].Copies
			return len(s.PerNode) == len(c.Nodes) && s.OfFiles > 0 && s.Files == s.OfFiles && s.Bytes == s.OfBytes
		})
	}
}

// remote returns the bytes that the clients have read from other nodes.
func (c *Cluster) remote() (n int64) {
	for _, x := range c.Nodes {
		n += x.Client.Stats().ReadRemote
	}
	return n
}

// TestReplicasHealALostOwner: with each replication mode and each kind of source, the loss of an owner costs no byte
// from the source, and all bytes are right.
func TestReplicasHealALostOwner(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name     string
		write    func(t *testing.T, path string, m map[string][]byte)
		replicas cluster.Replicas
	}{
		{"directory", func(t *testing.T, path string, m map[string][]byte) { writeTree(t, path, m) }, cluster.ReplicasAll},
		{"tar", writeTar, "1"},
		{"zip", writeZip, "2"},
		{"packed", func(t *testing.T, path string, m map[string][]byte) {
			writeTar(t, path, m)
			packMembers(t, path)
		}, cluster.ReplicasSpare},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			m := randomFiles(120, 60_000)
			src := filepath.Join(t.TempDir(), "src")
			kind.write(t, src, m)
			fsys := newCounted()
			c, ds := withReplicas(t, Config{Source: fsys}, src, kind.replicas)
			before := fsys.sum()
			s := c.Nodes[1].Status(context.Background()).Datasets[0].Copies
			want := int64(kind.replicas.Count(4)) * bytesOf(m)
			if s.Bytes != want || s.Files != int64(kind.replicas.Count(4)*len(m)) || len(s.Full) > 0 {
				t.Errorf("replicas: %+v, want %d bytes", s, want)
			}
			far := c.remote()
			readAll(t, c, ds.ID, m, 1)
			if n := c.remote() - far; kind.replicas.Count(4) == 3 && n > 0 {
				t.Errorf("%d bytes were read from other nodes, although every node has all", n)
			}
			if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Files != int64(len(m)) || r.Replicas != s.Files || r.Unsummed != 0 {
				t.Errorf("verify: %+v", r)
			}
			had := c.loses(t, 2, ds.ID, m)
			readAll(t, c, ds.ID, m, 2)
			if n := fsys.sum() - before; n > 0 {
				t.Errorf("%d bytes came from the source, although a replica of each of %d files was there", n, len(had))
			}
			Eventually(t, "the others have the lost node's files", func() bool {
				r := c.verify(t, dataset.VerifySpec{Name: "set", Keep: true})
				return r.Bad == 0 && r.Files == int64(len(m)) && r.Unsummed == 0
			})
			if n := fsys.sum() - before; n > 0 {
				t.Errorf("%d bytes came from the source to replace the lost node", n)
			}
		})
	}
}

// TestReplicasOfStripedFiles: each chunk of a striped file has replicas, which are read, verified, and replace a lost
// owner without the source. Scratch can take their room.
func TestReplicasOfStripedFiles(t *testing.T) {
	t.Parallel()
	m := randomFiles(20, 30_000)
	m["striped"] = bytes.Repeat([]byte("an odd period for a chunk."), 65<<20/26)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	fsys := newCounted()
	c, ds := withReplicas(t, Config{Source: fsys, Capacity: 96 << 20}, src, "2")
	before := fsys.sum()
	s := c.Nodes[1].Status(context.Background()).Datasets[0].Copies
	if s.Bytes != 2*bytesOf(m) || s.Files != int64(2*len(m)) || len(s.Full) > 0 {
		t.Errorf("replicas: %+v, want %d bytes of %d files", s, 2*bytesOf(m), 2*len(m))
	}
	far := c.remote()
	readAll(t, c, ds.ID, m, 1)
	if n := c.remote() - far; n > bytesOf(m)*5/4 {
		t.Errorf("%d bytes were read from other nodes, want those of the quarter that each node lacks, %d", n, bytesOf(m))
	}
	c.loses(t, 2, ds.ID, m)
	readAll(t, c, ds.ID, m, 1)
	Eventually(t, "the others have the lost node's chunks", func() bool {
		r := c.verify(t, dataset.VerifySpec{Name: "set", Keep: true})
		return r.Bad == 0 && r.Files == int64(len(m)) && r.Replicas > 0
	})
	(&Cluster{Nodes: c.Nodes[:1]}).fillUp(t, 0)
	if s := c.Nodes[0].Status(context.Background()).Datasets[0].Copies; s.Given == 0 || s.PerNode[0].Bytes > 8<<20 {
		t.Errorf("replicas with scratch full: %+v", s)
	}
	readAll(t, c, ds.ID, m, 1)
	if n := fsys.sum() - before; n > 0 {
		t.Errorf("%d bytes came from the source", n)
	}
}

// TestReplicasAreShown: locate lists the owner first and then the replicas, and status counts them.
func TestReplicasAreShown(t *testing.T) {
	t.Parallel()
	m := randomFiles(40, 20_000)
	m["empty"] = nil
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	c, ds := withReplicas(t, Config{}, src, "2")
	for path := range m {
		a, err := attr(c.Nodes[0], ds.ID, path)
		if err != nil {
			t.Fatal(err)
		}
		var first []string
		for i, n := range c.Nodes {
			hosts, err := n.Client.Hosts(context.Background(), a)
			if err != nil || hosts[0] != fmt.Sprint("host", a.Layout.Node) {
				t.Fatalf("hosts of %s: %v, %v, owner %d", path, hosts, err, a.Layout.Node)
			}
			slices.Sort(hosts)
			if i == 0 {
				first = hosts
			}
			if want := 3; a.Size > 0 && (len(slices.Compact(slices.Clone(hosts))) != want || !slices.Equal(hosts, first)) {
				t.Errorf("hosts of %s for node %d: %v, for node 0: %v, want %d", path, i, hosts, first, want)
			}
		}
	}
	var text bytes.Buffer
	if err := show.Status(&text, c.Nodes[3].Status(context.Background())); err != nil {
		t.Fatal(err)
	}
	if want := "set: replicas=2: 80 of 80 files, "; !strings.Contains(text.String(), want) || !strings.Contains(text.String(), "(100 %)") {
		t.Errorf("status says nothing of %q:\n%s", want, &text)
	}
}

// TestCorruptReplica: no byte of a corrupt replica is sent to a reader with verify=reads, and verify names it. A
// damaged owner is repaired from the intact replica, not from the source.
func TestCorruptReplica(t *testing.T) {
	t.Parallel()
	m := randomFiles(30, 30_000)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	fsys := newCounted()
	c, ds := withReplicas(t, Config{Source: fsys, VerifyReads: true}, src, "2")
	before := fsys.sum()
	of := func(path string) (a metadata.Attr, places []metadata.NodeID) {
		a, err := attr(c.Nodes[0], ds.ID, path)
		if err != nil {
			t.Fatal(err)
		}
		m := c.Nodes[0].View().Map
		return a, m.Replicas(nil, a.Ino, a.Layout.Node, 2)
	}
	spoil := func(id metadata.NodeID, path string) { (&Cluster{Nodes: c.Nodes[id : id+1]}).mustSpoil(t, m[path]) }

	const sent = "d3/f0003"
	a, places := of(sent)
	spoil(places[0], sent)
	asks := c.Nodes[a.Layout.Node]
	d := remote.NewData(asks.Caller(places[0]))
	for range 2 {
		if n, err := d.ReadSummed(context.Background(), a.Ino, make([]byte, a.Size), 0); !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("read of a corrupt replica: %d bytes, %v, want EAGAIN", n, err)
		}
	}
	readAll(t, c, ds.ID, m, 2)

	const found = "d4/f0004"
	a, places = of(found)
	spoil(places[1], found)
	spoil(a.Layout.Node, found)
	for range 2 {
		if r := c.verify(t, dataset.VerifySpec{Name: "set", Keep: true}); r.Bad != 1 || !slices.Equal(named(r), []string{found}) {
			t.Errorf("verify: %+v", r)
		}
	}
	if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Repaired != 1 {
		t.Errorf("repair: %+v", r)
	}
	if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Repaired != 0 || r.Replicas != int64(2*len(m)-2) {
		t.Errorf("afterwards: %+v, want two replicas less", r)
	}
	readAll(t, c, ds.ID, m, 1)
	if n := fsys.sum() - before; n > 0 {
		t.Errorf("%d bytes came from the source", n)
	}
}

// TestReplicasGiveWay: scratch gets all the room that it had without replicas, while the dataset is being read, and
// status reports this.
func TestReplicasGiveWay(t *testing.T) {
	t.Parallel()
	m := randomFiles(200, 60_000)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	fsys := newCounted()
	capacity := 2 * bytesOf(m)
	c, ds := withReplicas(t, Config{Source: fsys, Capacity: capacity}, src, cluster.ReplicasAll)
	before := fsys.sum()
	var own, free int64
	for _, n := range c.Nodes {
		s, err := n.Data().Space(context.Background())
		if err != nil || s.Used > bytesOf(m)/2 || s.Used+s.Free != capacity {
			t.Errorf("space with replicas: %+v, %v", s, err)
		}
		own, free = own+s.Used, free+s.Free
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		readAll(t, c, ds.ID, m, 1)
	}()
	c.fillUp(t, 0)
	<-done
	readAll(t, c, ds.ID, m, 1)
	for i, n := range c.Nodes {
		s, err := n.Data().Space(context.Background())
		if err != nil || s.Free > 8192 || s.Used > capacity {
			t.Errorf("node %d with scratch full: %+v, %v", i, s, err)
		}
	}
	s := c.Nodes[0].Status(context.Background()).Datasets[0].Copies
	if s.Given == 0 || s.PerNode[0].Bytes > capacity/16 {
		t.Errorf("replicas with scratch full: %+v", s)
	}
	if n := fsys.sum() - before; n > 0 {
		t.Errorf("%d bytes came from the source", n)
	}
	if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Files != int64(len(m)) {
		t.Errorf("verify: %+v", r)
	}
}

// TestReplicasWithoutRoom: if only a part of the replicas fits, only that part is made.
func TestReplicasWithoutRoom(t *testing.T) {
	t.Parallel()
	m := randomFiles(200, 60_000)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	capacity := bytesOf(m) * 3 / 4
	c := Start(t, Config{Capacity: capacity, Datasets: []job.Dataset{{Source: src, Name: "set", Options: stagein.Options{Replicas: cluster.ReplicasAll}}}})
	ds := c.Dataset(t, 0, "set")
	Eventually(t, "all nodes are full", func() bool {
		s := c.Nodes[1].Status(context.Background()).Datasets[0].Copies
		return s != nil && len(s.Full) == 4
	})
	s := c.Nodes[1].Status(context.Background()).Datasets[0].Copies
	if share := float64(s.Bytes) / float64(s.OfBytes); share < 0.4 || share > 0.65 {
		t.Errorf("%.2f of the replicas are there, want those for which three quarters of the dataset's bytes have room: %+v", share, s)
	}
	readAll(t, c, ds.ID, m, 1)
	for _, x := range c.Nodes {
		if places := x.Client.Sources(); slices.ContainsFunc(places, func(p sources.Status) bool { return p.Failures > 0 }) {
			t.Errorf("reads failed: %+v", places)
		}
	}
}

// TestSpareFollowsThePlan: each node has room for replicas of a third of the others' files, and made the same ones on
// all nodes. Then a plan makes it read the same quarter of the files in every epoch: it replicates these instead.
func TestSpareFollowsThePlan(t *testing.T) {
	t.Parallel()
	m := randomFiles(200, 60_000)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	fsys := newCounted()
	c := Start(t, Config{Source: fsys, Capacity: bytesOf(m) * 9 / 16, Datasets: []job.Dataset{
		{Source: src, Name: "set", Options: stagein.Options{Replicas: cluster.ReplicasSpare}},
	}})
	ds := c.Dataset(t, 0, "set")
	full := func() bool {
		s := c.Nodes[1].Status(context.Background()).Datasets[0].Copies
		return s != nil && len(s.Full) == len(c.Nodes)
	}
	Eventually(t, "all nodes are full", full)
	plan := accessplan.Plan{Dataset: "set", Kind: accessplan.List, Ranks: len(c.Nodes), Paths: slices.Sorted(maps.Keys(m))}
	if _, err := c.Nodes[2].Plans().Set(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "every node has a copy of each file that its rank reads", func() bool {
		for i, path := range plan.Paths {
			n := c.Nodes[i%len(c.Nodes)]
			a, err := attr(n, ds.ID, path)
			if err != nil || !slices.Contains(n.Client.Where(&a), n.Client.Self()) {
				return false
			}
		}
		return true
	})
	before, far := fsys.sum(), c.remote()
	for i, path := range plan.Paths {
		if got, err := read(t.Context(), c.Nodes[i%len(c.Nodes)], ds.ID, path); err != nil || !bytes.Equal(got, m[path]) {
			t.Fatalf("%s: %d bytes, %v, want %d", path, len(got), err, len(m[path]))
		}
	}
	if n := c.remote() - far; n > 0 {
		t.Errorf("%d bytes were read from other nodes, although each node has what its rank reads", n)
	}
	Eventually(t, "all nodes are full again", full)
	readAll(t, c, ds.ID, m, 1)
	if n := fsys.sum() - before; n > 0 {
		t.Errorf("%d bytes came from the source", n)
	}
}

// slowConn delays received bytes.
type slowConn struct{ net.Conn }

func (s slowConn) Read(b []byte) (int, error) {
	time.Sleep(20 * time.Millisecond)
	return s.Conn.Read(b)
}

// TestSlowOwnerIsRelieved: few reads go to an owner that answers slowly.
func TestSlowOwnerIsRelieved(t *testing.T) {
	t.Parallel()
	m := randomFiles(80, 30_000)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	c, ds := withReplicas(t, Config{}, src, "2")
	reader := &Cluster{Nodes: c.Nodes[:1]}
	served := func(id metadata.NodeID) (of, all int64) {
		for _, p := range c.Nodes[0].Client.Sources() {
			if p.Place == id {
				of = p.Reads
			}
			if p.Place != 0 {
				all += p.Reads
			}
		}
		return of, all
	}
	c.Tamper(0, func(to int, conn net.Conn) net.Conn {
		if to == 1 {
			return slowConn{conn}
		}
		return conn
	})
	for range 12 {
		readAll(t, reader, ds.ID, m, 1)
	}
	if n, all := served(1); n > all/8 || all < 150 {
		t.Errorf("%d of %d reads were of the slow one among three nodes", n, all)
	}
}

// TestReplicasAfterRestart: a daemon that restarts keeps its replicas, except one that was damaged
// meanwhile.
func TestReplicasAfterRestart(t *testing.T) {
	t.Parallel()
	m := randomFiles(60, 30_000)
	src := filepath.Join(t.TempDir(), "src")
	writeTree(t, src, m)
	c, ds := withReplicas(t, Config{}, src, cluster.ReplicasAll)
	c.Kill(t, 1)
	before := make(map[string]os.FileInfo)
	damaged := ""
	for path, b := range m {
		if a, err := attr(c.Nodes[0], ds.ID, path); err != nil {
			t.Fatal(err)
		} else if a.Layout.Node != 1 && damaged == "" {
			damaged = path
			c.Nodes[1].Job.Dirs.Store = []string{filepath.Join(c.Nodes[1].dir, "store")}
			(&Cluster{Nodes: c.Nodes[1:2]}).mustSpoil(t, b)
		}
	}
	for _, o := range c.Nodes[1].objectFiles(t) {
		info, err := os.Stat(o)
		if err != nil {
			t.Fatal(err)
		}
		before[filepath.Base(o)] = info
	}
	c.Revive(t, 1)
	c.awaitReplicas(t)
	again := 0
	for _, o := range c.Nodes[1].objectFiles(t) {
		info, err := os.Stat(o)
		if was := before[filepath.Base(o)]; err != nil || was == nil || !info.ModTime().Equal(was.ModTime()) {
			again++ // inode numbers are reused, too
		}
	}
	if again != 1 {
		t.Errorf("%d replicas were made again, want the damaged one", again)
	}
	readAll(t, c, ds.ID, m, 1)
	if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Repaired != 0 || r.Replicas != int64(3*len(m)) {
		t.Errorf("verify: %+v", r)
	}
}
