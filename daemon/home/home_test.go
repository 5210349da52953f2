package home

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// testHome is a home on a fake network.
type testHome struct {
	*Server
	fake *nodetest.Node
	data *chunkstore.Store
}

// homes is n homes of one job. Nothing runs in their background.
func homes(t *testing.T, n int) []testHome {
	t.Helper()
	r, net := nodetest.NewRegistry(nodetest.View(n)), nodetest.NewNetwork()
	all := make([]testHome, n)
	for i := range all {
		dir := t.TempDir()
		data, err := chunkstore.Open(chunkstore.Config{Dirs: []string{filepath.Join(dir, "data")}})
		if err != nil {
			t.Fatal(err)
		}
		fake := nodetest.Join(t, metadata.NodeID(i), r, net)
		s, err := Open(Config{
			Node: fake, Data: data, Dir: filepath.Join(dir, "meta"), Run: 1, SweepDelay: time.Microsecond,
			Home:   func(id metadata.NodeID) metadata.TxPeer { return remote.NewStore(fake.To(id)) },
			Shards: func(id metadata.NodeID) metadata.Shards { return remote.NewStore(fake.To(id)) },
		})
		if err != nil {
			t.Fatal(err)
		}
		fake.Serve(s.Handlers())
		all[i] = testHome{s, fake, data}
		t.Cleanup(func() {
			if err := errors.Join(s.Close(), data.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	return all
}

func newFile() metadata.New { return metadata.New{Mode: syscall.S_IFREG | 0o644} }

// TestLeaseRevoked checks that a lease of another node is revoked before a change
// returns, and that the node that changes is not asked.
func TestLeaseRevoked(t *testing.T) {
	ctx, hs := context.Background(), homes(t, 2)
	var mu sync.Mutex
	var forgot []metadata.LeaseKey
	hs[1].SetRevoke(func(keys []metadata.LeaseKey) {
		mu.Lock()
		defer mu.Unlock()
		forgot = append(forgot, keys...)
	})
	a, lease, err := hs[0].GetattrLease(ctx, metadata.RootIno, 1)
	if err != nil || lease.Attr == 0 {
		t.Fatalf("GetattrLease = %v, %v, %v, want a lease", a, lease, err)
	}
	if _, err := hs[0].Create(ctx, metadata.RootIno, "f", newFile()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(forgot) != 1 || forgot[0] != attrKey(metadata.RootIno) {
		t.Errorf("node 1 forgot %v, want the attributes of the root", forgot)
	}
}

func TestMayHaveChanged(t *testing.T) {
	for err, want := range map[error]bool{nil: true, syscall.EIO: true, syscall.ENOENT: false, syscall.EEXIST: false} {
		if got := mayHaveChanged(err); got != want {
			t.Errorf("mayHaveChanged(%v) = %v, want %v", err, got, want)
		}
	}
}

// TestSweepObjects checks that a sweep removes the object of a file that is gone,
// keeps that of one that is there, and waits for a home that does not answer.
func TestSweepObjects(t *testing.T) {
	ctx, hs := context.Background(), homes(t, 2)
	kept, err := hs[0].Create(ctx, metadata.RootIno, "kept", newFile())
	if err != nil {
		t.Fatal(err)
	}
	gone, err := hs[0].Create(ctx, metadata.RootIno, "gone", newFile())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hs[0].Unlink(ctx, metadata.RootIno, "gone"); err != nil {
		t.Fatal(err)
	}
	if err := hs[0].Reap(ctx, gone.Ino); err != nil {
		t.Fatal(err)
	}
	for _, ino := range []metadata.Ino{kept.Ino, gone.Ino} {
		if err := hs[1].data.WriteAt(ctx, ino, []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
	}
	hs[1].fake.Network().Cut(0, syscall.EHOSTDOWN)
	if s, err := hs[1].sweepOnce(ctx, false); err != nil || s.Waiting != 2 || s.Objects != 0 {
		t.Errorf("sweep without the home = %+v, %v, want 2 objects to wait", s, err)
	}
	hs[1].fake.Network().Cut(0, nil)
	if s, err := hs[1].sweepOnce(ctx, true); err != nil || s.Objects != 1 || s.Waiting != 0 || s.Undone {
		t.Errorf("sweep = %+v, %v, want 1 object removed", s, err)
	}
	if r, err := hs[0].Check(ctx); err != nil || r.Objects != 1 || r.Wrong != 0 {
		t.Errorf("Check = %+v, %v, want 1 object and nothing wrong", r, err)
	}
}

// TestCheckFindsLeak checks that an object without an inode is reported, and that
// a check needs all nodes.
func TestCheckFindsLeak(t *testing.T) {
	ctx, hs := context.Background(), homes(t, 2)
	if err := hs[1].data.WriteAt(ctx, metadata.LiveIno(0, 999), []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if _, problems, err := hs[0].checkOnce(ctx); err != nil || len(problems) != 1 {
		t.Errorf("checkOnce = %v, %v, want one problem", problems, err)
	}
	hs[0].fake.SetState(1, cluster.Down)
	if _, err := hs[0].Check(ctx); !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("Check without node 1 = %v, want %v", err, syscall.EHOSTDOWN)
	}
}

// TestHandlersRefuse checks requests that a node may not send.
func TestHandlersRefuse(t *testing.T) {
	ctx, hs := context.Background(), homes(t, 2)
	for _, c := range []struct {
		what string
		op   wire.Op
		body node.Appender
		want syscall.Errno
	}{
		{"a listing that does not fit", wire.OpReadDir, &wire.ReadDirReq{Dir: metadata.RootIno, Limit: wire.MaxEntries + 1}, syscall.EINVAL},
		{"a commit by another coordinator", wire.OpCommit, &wire.TxReq{}, syscall.EPERM},
		{"a shard of another home", wire.OpShardFill, &wire.ShardFillReq{}, syscall.EPERM},
	} {
		call := rpc.Call{Op: c.op, Body: c.body}
		if err := hs[1].fake.To(0).Do(ctx, &call); !errors.Is(err, c.want) {
			t.Errorf("%s (%v) = %v, want %v", c.what, c.op, err, c.want)
		}
	}
}

func TestHeardRun(t *testing.T) {
	s := homes(t, 1)[0]
	for i, c := range []struct {
		run  metadata.Run
		want int
	}{{5, 1}, {5, 0}, {4, 0}, {6, 1}} {
		s.heardRun(metadata.Holder{Node: 0, Run: c.run})
		if got := len(s.kick); got != c.want {
			t.Errorf("%d: run %d: %d sweeps due, want %d", i, c.run, got, c.want)
		}
		select {
		case <-s.kick:
		default:
		}
	}
}
