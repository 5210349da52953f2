package pebblestore

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

var wideDirSamples = []*shardedDir{
	{ShardMap: cluster.ShardMap{Epoch: 1, Seed: 7, Nodes: []metadata.NodeID{0}}, gen: 1, state: shardActive},
	{ShardMap: cluster.ShardMap{Epoch: 1 << 40, Seed: 1 << 63, Nodes: []metadata.NodeID{0, 3, 300, 32767}}, gen: 1 << 47, state: shardFrozen, freeze: 99},
}

func TestShardedDirValue(t *testing.T) {
	for _, d := range wideDirSamples {
		b := d.append(nil)
		got, err := parseShardedDir(b)
		if err != nil || !reflect.DeepEqual(got, d) {
			t.Errorf("parse(append(%+v)) = %+v, %v", d, got, err)
		}
		for n := range b {
			if _, err := parseShardedDir(b[:n]); !errors.Is(err, syscall.EIO) {
				t.Errorf("parse of %d bytes of %d = %v, want EIO", n, len(b), err)
			}
		}
		if _, err := parseShardedDir(append(b, 0)); !errors.Is(err, syscall.EIO) {
			t.Errorf("parse with a byte too many = %v, want EIO", err)
		}
	}
}

func FuzzShardedDirValue(f *testing.F) {
	for _, d := range wideDirSamples {
		f.Add(d.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseShardedDir(b)
		if err != nil {
			return
		}
		again, err := parseShardedDir(d.append(nil))
		if err != nil || !reflect.DeepEqual(again, d) {
			t.Fatalf("%x is %+v, and encoded again %+v, %v", b, d, again, err)
		}
	})
}

func TestShardKeysAreInOrder(t *testing.T) {
	keys := [][]byte{
		orphanKey(9), shardKey(1), shardKey(2), inoKey(prefixShardInode, 1), shardReportKey(1, 0), shardReportKey(1, 1), shardReportKey(1, 0xffff), shardReportEnd(1),
		shardReportKey(2, 0), tableKey(1, nil),
	}
	for i := range keys[1:] {
		if bytes.Compare(keys[i], keys[i+1]) > 0 {
			t.Errorf("key %x is behind %x", keys[i], keys[i+1])
		}
	}
}

// TestFullDirs: a directory is reported when it has enough entries, not counting removed ones or those from before this
// start, and again after many more.
func TestFullDirs(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, Config{FS: fs, ShardAt: 40})
	create := func(s *Store, dir metadata.Ino, n int, prefix string) {
		t.Helper()
		for i := range n {
			if _, err := s.Create(ctx, dir, fmt.Sprint(prefix, i), metadata.New{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(what string, dirs ...metadata.Ino) {
		t.Helper()
		if got := s.FullDirs(); len(got) != len(dirs) || len(dirs) > 0 && got[0] != dirs[0] {
			t.Errorf("%s: FullDirs = %v, want %v", what, got, dirs)
		}
	}
	d, err := s.Mkdir(ctx, metadata.RootIno, "d", metadata.New{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		create(s, d.Ino, 39, "x")
		for k := range 39 {
			if _, err := s.Unlink(ctx, d.Ino, fmt.Sprint("x", k)); err != nil {
				t.Fatal(err)
			}
		}
		want(fmt.Sprint("round ", i))
	}
	create(s, d.Ino, 39, "a")
	want("with 39 entries")
	create(s, d.Ino, 1, "b")
	want("with 40 entries", d.Ino)
	create(s, d.Ino, 9, "c")
	want("with 49 entries")
	create(s, d.Ino, 1, "d")
	want("with 50 entries", d.Ino)
	select {
	case <-s.Full():
	default:
		t.Error("no watcher was notified")
	}
}

// TestCountsAreBounded: counting entries of many directories takes bounded memory.
func TestCountsAreBounded(t *testing.T) {
	s := open(t, Config{ShardAt: 1000})
	for range 900 {
		s.count(metadata.RootIno, "x", 1)
	}
	for i := range maxCounts + 100 {
		s.count(metadata.LiveIno(0, uint64(2000+i)), "x", 1)
	}
	if n := len(s.sharded.counts); n > maxCounts {
		t.Errorf("%d directories are counted, want at most %d", n, maxCounts)
	}
	if n := s.sharded.counts[metadata.RootIno]; n != 900 {
		t.Errorf("the largest directory counts %d, want 900", n)
	}
}

// TestShardRefuses: invalid shards are refused.
func TestShardRefuses(t *testing.T) {
	s := open(t, Config{Self: 2})
	good := metadata.NewShard{
		Shard: metadata.Shard{Dir: metadata.RootIno, Gen: 5}, Epoch: 3,
		Nodes: []metadata.NodeID{0, 2}, Attr: metadata.Attr{Mode: dir | 0o755},
	}
	for what, change := range map[string]func(*metadata.NewShard){
		"a directory of this node":    func(n *metadata.NewShard) { n.Dir = metadata.LiveIno(2, 5000) },
		"a sealed directory":          func(n *metadata.NewShard) { n.Dir = metadata.SealedIno(1, metadata.DirPart, 0) },
		"a file":                      func(n *metadata.NewShard) { n.Attr.Mode = reg },
		"nodes without this one":      func(n *metadata.NewShard) { n.Nodes = []metadata.NodeID{0, 1} },
		"nodes that are not in order": func(n *metadata.NewShard) { n.Nodes = []metadata.NodeID{2, 0} },
	} {
		bad := good
		change(&bad)
		if err := s.CreateShard(ctx, bad); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("CreateShard of %s = %v, want EINVAL", what, err)
		}
	}
	if err := s.CreateShard(ctx, good); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lookup(ctx, good.Dir, "x"); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("Lookup in a shard that is not in force = %v, want EAGAIN", err)
	}
	err := s.FillShard(ctx, good.Shard, []metadata.Entry{{Name: "a/b", Ino: 4000, Mode: reg}})
	if !errors.Is(err, syscall.EINVAL) {
		t.Errorf("FillShard of a bad name = %v, want EINVAL", err)
	}
	if err := s.ChangeShard(ctx, metadata.ShardChange{Shard: good.Shard, Order: 99}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("ChangeShard of order 99 = %v, want EINVAL", err)
	}
	if _, err := s.ReportShard(ctx, 0, metadata.ShardReport{Shard: good.Shard}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("ReportShard at another node than the home = %v, want EINVAL", err)
	}
}

// TestReadShardWhileCommitted: until the store agrees with the table in memory, a home's shard is not listed, since it
// still has the entries of the other shards.
func TestReadShardWhileCommitted(t *testing.T) {
	const epoch = 3
	s := open(t, Config{ShardAt: 10})
	for i := range 100 {
		if _, err := s.Create(ctx, metadata.RootIno, fmt.Sprint("f", i), metadata.New{}); err != nil {
			t.Fatal(err)
		}
	}
	m, err := s.BeginSplit(metadata.RootIno, cluster.ShardMap{Epoch: epoch, Nodes: []metadata.NodeID{0, 1}})
	if err != nil || m == nil {
		t.Fatal("not split: ", err)
	}
	s.sharded.set(metadata.RootIno, m.to) // as Commit does before its batch
	if es, err := s.ReadShard(ctx, metadata.RootIno, epoch, "", 200); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("ReadNames before the store has the shard = %d entries, %v, want EAGAIN", len(es), err)
	}
	m.Freeze()
	if err := m.Commit(); err != nil {
		t.Fatal(err)
	}
	es, err := s.ReadShard(ctx, metadata.RootIno, epoch, "", 200)
	if err != nil || len(es) == 0 || len(es) == 100 {
		t.Errorf("ReadNames of the shard = %d entries, %v, want a part of 100", len(es), err)
	}
}
