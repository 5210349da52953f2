package shard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/shard"
)

const shardAt = 50

var ctx = context.Background()

// job is nodes that call each other directly, and can be killed during a call.
type job struct {
	*testing.T
	view  cluster.Map
	nodes []*node

	mu    sync.Mutex
	calls int              // guarded by mu: calls between nodes so far
	hook  func(before int) // guarded by mu: called before each call with the count, and after it with 0
}

// node is one run of a node's process.
type node struct {
	j    *job
	id   metadata.NodeID
	fs   *vfs.MemFS
	s    *pebblestore.Store
	d    *shard.Manager
	dead bool // under job.mu
}

func newJob(t *testing.T, n int) *job {
	hosts := make([]string, n)
	for i := range hosts {
		hosts[i] = fmt.Sprint("host", i)
	}
	j := &job{T: t, view: cluster.NewMap(7, hosts)}
	for i := range n {
		j.view = j.view.WithState(metadata.NodeID(i), cluster.Up, "addr")
	}
	for i := range n {
		j.nodes = append(j.nodes, j.start(metadata.NodeID(i), vfs.NewCrashableMem()))
	}
	return j
}

func (j *job) start(id metadata.NodeID, fs *vfs.MemFS) *node {
	j.Helper()
	n := &node{j: j, id: id, fs: fs}
	var err error
	n.s, err = pebblestore.Open(pebblestore.Config{Dir: "meta", FS: fs, Self: id, ShardAt: shardAt})
	if err != nil {
		j.Fatal(err)
	}
	j.Cleanup(func() { _ = n.s.Close() }) // in memory only
	n.d = shard.New(shard.Config{
		Self: id, Store: n.s, Map: func() cluster.Map { return j.view }, Delay: time.Millisecond,
		Peer: func(to metadata.NodeID) metadata.Shards { return link{n, to} },
	})
	return n
}

// kill kills the process of a node; its later actions have no effect.
func (j *job) kill(id metadata.NodeID) {
	n := j.nodes[id]
	n.dead = true
	n.fs = n.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
}

// revive restarts the killed nodes.
func (j *job) revive() {
	j.Helper()
	for i, n := range j.nodes {
		if n.dead {
			j.nodes[i] = j.start(n.id, n.fs)
		}
	}
}

// settle reports all shards until none waits.
func (j *job) settle() {
	j.Helper()
	for _, n := range j.nodes {
		for end := time.Now().Add(time.Minute); n.d.Report(ctx) != nil; {
			if time.Now().After(end) {
				j.Fatalf("node %d is not settled: %v", n.id, n.d.Report(ctx))
			}
		}
	}
}

// link is a node as seen by another one.
type link struct {
	from *node
	to   metadata.NodeID
}

var errCut = fmt.Errorf("nobody answers: %w", syscall.ECONNRESET)

// call makes one call, unless either node is dead before; the reply is lost if either is dead after.
func (l link) call(fn func(*pebblestore.Store) error) error {
	j := l.from.j
	to := j.step(l, 1)
	if to == nil {
		return errCut
	}
	err := fn(to.s)
	if j.step(l, 0) != to {
		return errCut
	}
	return err
}

func (j *job) step(l link, one int) *node {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls += one
	if j.hook != nil {
		j.hook(j.calls * one)
	}
	to := j.nodes[l.to]
	if l.from.dead || to.dead {
		return nil
	}
	return to
}

func (l link) CreateShard(ctx context.Context, n metadata.NewShard) error {
	return l.call(func(s *pebblestore.Store) error { return s.CreateShard(ctx, n) })
}

func (l link) FillShard(ctx context.Context, sec metadata.Shard, es []metadata.Entry) error {
	return l.call(func(s *pebblestore.Store) error { return s.FillShard(ctx, sec, es) })
}

func (l link) ChangeShard(ctx context.Context, c metadata.ShardChange) error {
	return l.call(func(s *pebblestore.Store) error { return s.ChangeShard(ctx, c) })
}

func (l link) ReportShard(ctx context.Context, by metadata.NodeID, r metadata.ShardReport) (a metadata.ShardAnswer, err error) {
	err = l.call(func(s *pebblestore.Store) (err error) {
		a, err = s.ReportShard(ctx, by, r)
		return err
	})
	return a, err
}

func (l link) ReadShard(ctx context.Context, dir metadata.Ino, e metadata.Epoch, after string, limit int) (es []metadata.Entry, err error) {
	err = l.call(func(s *pebblestore.Store) (err error) {
		es, err = s.ReadShard(ctx, dir, e, after, limit)
		return err
	})
	return es, err
}

// on calls fn on the node that has the entry name of dir, found in the same way as by a client.
func (j *job) on(dir metadata.Ino, name string, fn func(*pebblestore.Store) error) error {
	j.Helper()
	at := dir.Home()
	for range 2 * len(j.nodes) {
		err := fn(j.nodes[at].s)
		var e *metadata.Redirect
		if !errors.As(err, &e) {
			return err
		}
		at = j.view.EntryHome(dir, name, e.Epoch)
	}
	j.Fatalf("%q of %v: nobody keeps it", name, dir)
	return nil
}

func (j *job) create(dir metadata.Ino, name string) error {
	j.Helper()
	return j.on(dir, name, func(s *pebblestore.Store) error {
		_, err := s.Create(ctx, dir, name, metadata.New{Mode: syscall.S_IFREG | 0o644})
		return err
	})
}

func (j *job) unlink(dir metadata.Ino, name string) error {
	j.Helper()
	return j.on(dir, name, func(s *pebblestore.Store) error {
		tx := metadata.TxID(metadata.LiveIno(99, txs.Add(1))) // of a node outside the job
		leave := metadata.Edit{Kind: metadata.EditLeave, Dir: dir, Name: name, Ino: j.ino(dir, name)}
		if _, err := s.Prepare(ctx, tx, []metadata.Edit{leave}); err != nil {
			return err
		}
		return s.Commit(ctx, tx)
	})
}

var txs atomic.Uint64

func (j *job) ino(dir metadata.Ino, name string) (ino metadata.Ino) {
	j.Helper()
	err := j.on(dir, name, func(s *pebblestore.Store) error {
		e, err := s.Lookup(ctx, dir, name)
		ino = e.Ino
		return err
	})
	if err != nil {
		j.Errorf("Lookup(%q): %v", name, err)
	}
	return ino
}

// names returns all entries of dir, from all nodes.
func (j *job) names(dir metadata.Ino) []string {
	j.Helper()
	var names []string
	add := func(es []metadata.Entry, err error) {
		j.Helper()
		if err != nil {
			j.Fatalf("listing of %v: %v", dir, err)
		}
		for _, e := range es {
			names = append(names, e.Name)
		}
	}
	es, err := j.nodes[dir.Home()].s.ReadDir(ctx, dir, "", 1<<20)
	var e *metadata.Redirect
	if errors.As(err, &e) {
		for _, id := range j.view.UpAt(e.Epoch) {
			add(j.nodes[id].s.ReadShard(ctx, dir, e.Epoch, "", 1<<20))
		}
	} else {
		add(es, err)
	}
	slices.Sort(names)
	return names
}

func (j *job) sharded(dir metadata.Ino) bool { return j.nodes[dir.Home()].s.Epoch(dir) != 0 }

// wantNames fails unless dir has exactly these names, each with its inode.
func (j *job) wantNames(dir metadata.Ino, want []string) {
	j.Helper()
	slices.Sort(want)
	if got := j.names(dir); !slices.Equal(got, want) {
		j.Fatalf("%d names, want %d: %v, want %v", len(got), len(want), got, want)
	}
	for _, name := range want {
		if j.ino(dir, name) == 0 {
			j.Fatalf("%q is not found", name)
		}
	}
}
