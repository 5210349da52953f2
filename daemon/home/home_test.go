package home

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
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

// homes returns n homes of one job. They have no background goroutines.
func homes(t *testing.T, n int, standIns ...int) []testHome {
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
			Node: fake, Data: data, Dir: filepath.Join(dir, "meta"), Run: 1, SweepDelay: time.Microsecond, StandIn: slices.Contains(standIns, i),
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

// TestSweepOfLostHome: the stand-in of a lost home sweeps it, and answers for the objects of others.
func TestSweepOfLostHome(t *testing.T) {
	ctx, hs := t.Context(), homes(t, 3, 2)
	hs[0].fake.Change(func(v cluster.View) cluster.View {
		v.Map, _ = v.Map.WithPartner(2, 0, cluster.Partner{Node: 0, Since: v.Map.Epoch})
		v.Map = v.Map.WithState(2, cluster.Down, "")
		return v
	})
	tx, peer := metadata.TxID(metadata.LiveIno(0, 1<<30)), remote.NewStore(hs[0].fake.To(2))
	made := &metadata.New{Mode: syscall.S_IFDIR | 0o755} // the coordinator is lost before it enters the name
	v, err := peer.Prepare(ctx, tx, []metadata.Edit{{Kind: metadata.EditMake, ToDir: metadata.RootIno, ToName: "x", New: made}})
	if err := errors.Join(err, peer.Commit(ctx, tx)); err != nil {
		t.Fatal(err)
	}
	if !hs[2].serves(hs[2].node.View()) {
		t.Error("no sweep begins at the stand-in")
	}
	if found, err := hs[2].sweepOnce(ctx, true); err != nil || found.Undone || found.Inodes != 1 || found.Objects != 0 {
		t.Errorf("sweep at the stand-in = %+v, %v, want an inode", found, err)
	}
	if err := hs[0].data.WriteAt(ctx, v.Attr.Ino, []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if found, err := hs[0].sweepOnce(ctx, true); err != nil || found.Undone || found.Objects != 1 || found.Waiting != 0 {
		t.Errorf("sweep elsewhere = %+v, %v, want an object of the lost home", found, err)
	}
}

// TestLeaseRevoked: a lease of another node is recalled before a change returns; the node that makes the change is not
// asked.
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

// TestSlowChangeRevokesOwn: a node gives up its change of an inode and gets a lease on it before the change takes
// effect. That lease is recalled, too.
func TestSlowChangeRevokesOwn(t *testing.T) {
	ctx, hs := context.Background(), homes(t, 2)
	var forgot atomic.Int64
	hs[1].SetRevoke(func(keys []metadata.LeaseKey) { forgot.Add(int64(len(keys))) })
	a, err := hs[0].Create(ctx, metadata.RootIno, "d", newFile())
	if err != nil {
		t.Fatal(err)
	}
	for _, slow := range []bool{false, true} {
		hs[0].copies = func(ctx context.Context) error {
			if !slow {
				return nil
			}
			_, lease, err := hs[0].GetattrLease(ctx, a.Ino, 1)
			if lease.Attr == 0 {
				t.Errorf("GetattrLease = %+v, %v, want a lease", lease, err)
			}
			return err
		}
		c := rpc.Call{Op: wire.OpSetattr, Reply: &wire.AttrResp{}, Body: &wire.SetattrReq{Ino: a.Ino, Change: metadata.Change{
			Set: metadata.SetCopies | metadata.SetMode, Mode: 0o600, Layout: metadata.Layout{Copies: 2},
		}}}
		if err := hs[1].fake.To(0).Do(ctx, &c); err != nil {
			t.Fatal(err)
		}
		if n := forgot.Load(); (n > 0) != slow {
			t.Errorf("slow = %v: %d leases were recalled", slow, n)
		}
	}
}

func TestMayHaveChanged(t *testing.T) {
	for err, want := range map[error]bool{nil: true, syscall.EIO: true, syscall.ENOENT: false, syscall.EEXIST: false} {
		if got := mayHaveChanged(err); got != want {
			t.Errorf("mayHaveChanged(%v) = %v, want %v", err, got, want)
		}
	}
}

// TestSweepObjects: a sweep removes the object of a removed file, keeps that of an existing one, and waits for a home
// that does not answer.
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

// TestSweepLinks: a name is removed while the home of its file is given up; when the home returns, a sweep corrects the
// link count, and leaves that of a file with all its names unchanged.
func TestSweepLinks(t *testing.T) {
	ctx, hs := context.Background(), homes(t, 2)
	far := farDirectory(t, hs)
	var files []metadata.Attr
	for _, name := range []string{"lost", "kept"} {
		a, err := hs[0].Create(ctx, metadata.RootIno, name, newFile())
		if err == nil {
			a, err = hs[1].Link(ctx, a.Ino, far, name)
		}
		if err != nil || a.Nlink != 2 {
			t.Fatalf("link: %+v, %v", a, err)
		}
		files = append(files, a)
	}
	net, registry := hs[1].fake.Network(), hs[1].fake.Registry
	net.Cut(0, syscall.EHOSTDOWN)
	registry.SetState(0, cluster.Down)
	if _, err := hs[1].Unlink(ctx, far, "lost"); err != nil {
		t.Fatal(err)
	}
	net.Cut(0, nil)
	registry.SetState(0, cluster.Up)
	if r, err := hs[0].Check(ctx); err != nil || r.Wrong != 1 {
		t.Errorf("Check before the sweep = %+v, %v, want 1 wrong link count", r, err)
	}
	if s, err := hs[0].sweepOnce(ctx, true); err != nil || s.Inodes != 0 || s.Undone {
		t.Errorf("sweep = %+v, %v, want no inode removed", s, err)
	}
	for i, want := range []uint32{1, 2} {
		if a, err := hs[0].Getattr(ctx, files[i].Ino); err != nil || a.Nlink != want {
			t.Errorf("file %d: %+v, %v, want %d links", i, a, err, want)
		}
	}
	if r, err := hs[0].Check(ctx); err != nil || r.Wrong != 0 {
		t.Errorf("Check = %+v, %v, want nothing wrong", r, err)
	}
}

// farDirectory creates a directory in the root whose home is node 1.
func farDirectory(t *testing.T, hs []testHome) metadata.Ino {
	t.Helper()
	for i := range 100 {
		a, err := hs[0].Mkdir(context.Background(), metadata.RootIno, fmt.Sprint("d", i), metadata.New{Mode: syscall.S_IFDIR | 0o755})
		if err != nil {
			t.Fatal(err)
		}
		if a.Ino.Home() == 1 {
			return a.Ino
		}
	}
	t.Fatal("no directory of 100 has node 1 as its home")
	return 0
}

// TestCheckFindsLeak: a check reports an object without an inode, and needs all nodes.
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

// TestHandlersRefuse sends requests that a node may not send.
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

// TestReplacedHomeOrders: once another node stands in for a home, its own node can no longer drop shards.
func TestReplacedHomeOrders(t *testing.T) {
	ctx, hs := t.Context(), homes(t, 3)
	shard := metadata.Shard{Dir: metadata.LiveIno(0, 999), Gen: 5}
	create := &wire.ShardCreateReq{NewShard: metadata.NewShard{
		Shard: shard, Epoch: hs[0].node.View().Map.Epoch, Nodes: []metadata.NodeID{0, 1, 2}, Attr: metadata.Attr{Ino: shard.Dir, Mode: syscall.S_IFDIR | 0o755, Nlink: 2},
	}}
	drop := func() error {
		return hs[0].fake.To(1).Do(ctx, &rpc.Call{Op: wire.OpShardChange, Body: &wire.ShardChangeReq{ShardChange: metadata.ShardChange{Shard: shard, Order: metadata.ShardDrop}}})
	}
	made := func() error { return hs[0].fake.To(1).Do(ctx, &rpc.Call{Op: wire.OpShardCreate, Body: create}) }
	if err := errors.Join(made(), drop(), made()); err != nil {
		t.Fatalf("orders of the home: %v", err)
	}
	hs[0].fake.Change(func(v cluster.View) cluster.View {
		v.Map, _ = v.Map.WithPartner(0, 0, cluster.Partner{Node: 2, Since: v.Map.Epoch})
		v.Map = v.Map.WithState(0, cluster.Down, "")
		return v
	})
	if err := drop(); !errors.Is(err, syscall.EPERM) {
		t.Errorf("an order of the node whose home is replaced = %v, want EPERM", err)
	}
	h := hs[1].Handlers()[wire.OpShardChange]
	err := rpc.Local(ctx, func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		r.StandIn = true
		return h(ctx, r, resp)
	}, 0, hs[1].node.View().Map.Epoch, &rpc.Call{Op: wire.OpShardChange, Body: &wire.ShardChangeReq{ShardChange: metadata.ShardChange{Shard: shard, Order: metadata.ShardDrop}}})
	if err != nil {
		t.Errorf("an order of the stand-in: %v", err)
	}
}

// TestAnswersInStep: a home whose partner may have more records of an earlier daemon than it has itself does not answer
// that a transaction, split or merge of that daemon did not happen.
func TestAnswersInStep(t *testing.T) {
	ctx, hs := t.Context(), homes(t, 2)
	inStep := false
	hs[0].cfg.InStep = func() bool { return inStep }
	peer := remote.NewStore(hs[1].fake.To(0))
	earlier, later := metadata.TxID(metadata.LiveIno(0, 1)), metadata.TxID(metadata.LiveIno(0, 1<<30))
	for _, inStep = range []bool{false, true} {
		outcome, state := metadata.Undecided, metadata.ShardWait
		if inStep {
			outcome, state = metadata.Aborted, metadata.ShardUnused
		}
		if got, err := peer.Outcome(ctx, earlier); err != nil || got != outcome {
			t.Errorf("in step %v: outcome of an earlier transaction %v, %v, want %v", inStep, got, err, outcome)
		}
		if got, err := peer.Outcome(ctx, later); err != nil || got != metadata.Aborted {
			t.Errorf("in step %v: outcome of a transaction %v, %v, want %v", inStep, got, err, metadata.Aborted)
		}
		got, err := peer.ReportShard(ctx, 1, metadata.ShardReport{Shard: metadata.Shard{Dir: metadata.RootIno, Gen: 7}})
		if err != nil || got.State != state {
			t.Errorf("in step %v: the answer to a shard is %v, %v, want %v", inStep, got.State, err, state)
		}
	}
}

// TestMovedMeanwhile: a home that was taken over during an open, a lock or a report of closes, all of which are in
// memory only, returns no result for it.
func TestMovedMeanwhile(t *testing.T) {
	hs := homes(t, 1)
	for op, want := range map[wire.Op]error{
		wire.OpOpen: metadata.ErrMoved, wire.OpOpenAhead: metadata.ErrMoved, wire.OpLock: metadata.ErrMoved, wire.OpAppend: metadata.ErrMoved,
		wire.OpClosed: metadata.ErrMoved, wire.OpGetattr: metadata.ErrMoved, wire.OpCreate: nil,
	} {
		var serves error
		hs[0].cfg.Serves = func() error { return serves }
		h := hs[0].fenced(func(context.Context, *rpc.Request, *rpc.Response) error {
			serves = fmt.Errorf("another node has the names: %w: %w", metadata.ErrMoved, syscall.EAGAIN)
			return nil
		})
		if err := h(t.Context(), &rpc.Request{Op: op}, new(rpc.Response)); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", op, err, want)
		}
	}
}

// TestMovedInCall: a change that a home could not finish because another node took over is repeated there if it is
// idempotent. For other changes the outcome is unknown.
func TestMovedInCall(t *testing.T) {
	hs := homes(t, 1)
	for op, moved := range map[wire.Op]bool{wire.OpAppend: true, wire.OpOpen: true, wire.OpCreate: false, wire.OpLink: false} {
		h := hs[0].fenced(func(context.Context, *rpc.Request, *rpc.Response) error {
			return fmt.Errorf("%w: another node: %w", metadata.ErrUnknownOutcome, syscall.EAGAIN)
		})
		err := h(t.Context(), &rpc.Request{Op: op}, new(rpc.Response))
		if errors.Is(err, metadata.ErrMoved) != moved || !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("%v: %v, want moved %v", op, err, moved)
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

// closedClient is a client without open files.
type closedClient struct{ Client }

func (closedClient) Recall(metadata.Recall) metadata.Recalled {
	return metadata.Recalled{Run: 7, Floor: 100}
}

// TestLostClose: a file without a name whose close was lost is found even if the cluster view changes all the time.
func TestLostClose(t *testing.T) {
	hs := homes(t, 2)
	hs[1].SetClient(closedClient{})
	by := metadata.Holder{Node: 1, Run: 7}
	a, err := hs[0].Create(t.Context(), metadata.RootIno, "f", newFile())
	opened := hs[0].files.Registry.Open(by, a.Ino, 1)
	_, gone := hs[0].Unlink(t.Context(), metadata.RootIno, "f")
	if err := errors.Join(err, opened, gone); err != nil {
		t.Fatal(err)
	}
	if len(hs[0].files.OrphanHolders()[1]) != 1 {
		t.Fatal("node 1 does not hold the orphan")
	}
	hs[0].node.Spawn(hs[0].followHolders)
	hs[0].node.Spawn(hs[0].followOrphans)
	for deadline := time.Now().Add(time.Minute); len(hs[0].files.OrphanHolders()) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the lost close was not found in a minute")
		}
		hs[0].fake.Change(func(v cluster.View) cluster.View { v.Version++; return v })
	}
}
