package shard_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
)

const root = metadata.RootIno

// fill creates n files and some directories in the root, and returns the names.
func (j *job) fill(n int) []string {
	j.Helper()
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("f%04d", i))
		if err := j.create(root, names[i]); err != nil {
			j.Fatal(err)
		}
	}
	for i := range 5 {
		name := fmt.Sprint("d", i)
		names = append(names, name)
		err := j.on(root, name, func(s *pebblestore.Store) error {
			_, err := s.Mkdir(ctx, root, name, metadata.New{Mode: 0o755})
			return err
		})
		if err != nil {
			j.Fatal(err)
		}
	}
	return names
}

func (j *job) split() error { return j.nodes[0].d.Split(ctx, root) }

// mustSplit splits the root.
func (j *job) mustSplit() {
	j.Helper()
	if err := j.split(); err != nil || !j.sharded(root) {
		j.Fatalf("Split: %v, sharded %v", err, j.sharded(root))
	}
	j.settle()
}

// TestSplit: the entries are distributed evenly, and can be looked up and listed; later changes are visible.
func TestSplit(t *testing.T) {
	j := newJob(t, 4)
	names := j.fill(400)
	j.mustSplit()
	j.wantNames(root, names)
	for i, n := range j.nodes {
		es, err := n.s.ReadShard(ctx, root, j.view.Epoch, "", 1000)
		if share := float64(len(names)) / 4; err != nil || math.Abs(float64(len(es))-share) > 6*math.Sqrt(share) {
			t.Errorf("node %d has %d of %d entries, %v", i, len(es), len(names), err)
		}
	}
	if err := j.create(root, "f0001"); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("Create of a taken name: %v", err)
	}
	for i := range 100 {
		name := fmt.Sprint("later", i)
		names = append(names, name)
		if err := j.create(root, name); err != nil {
			t.Fatal(err)
		}
		if at, home := j.ino(root, name).Home(), j.view.EntryHome(root, name, j.view.Epoch); at != home {
			t.Errorf("%s has its inode on node %d, and its entry on node %d", name, at, home)
		}
	}
	j.wantNames(root, names)
	if err := j.split(); err != nil {
		t.Errorf("Split of what is sharded: %v", err)
	}
}

// TestSplitIsDue: small directories, removed ones, those of other nodes, and those of a single-node job are not split.
func TestSplitIsDue(t *testing.T) {
	j := newJob(t, 2)
	j.fill(shardAt - 6)
	for _, dir := range []metadata.Ino{root, metadata.LiveIno(1, 4711), metadata.LiveIno(0, 4711)} {
		if err := j.nodes[0].d.Split(ctx, dir); err != nil || j.sharded(root) {
			t.Errorf("Split(%v) = %v", dir, err)
		}
	}
	one := newJob(t, 1)
	one.fill(2 * shardAt)
	if err := one.split(); err != nil || one.sharded(root) {
		t.Errorf("a job of one node split a directory: %v", err)
	}
}

// TestRun: a directory with enough entries is split automatically.
func TestRun(t *testing.T) {
	j := newJob(t, 3)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{}, len(j.nodes))
	for _, n := range j.nodes {
		go func() {
			n.d.Run(ctx)
			ended <- struct{}{}
		}()
	}
	var names []string
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !j.sharded(root); {
		name := fmt.Sprint("f", len(names))
		switch err := j.create(root, name); {
		case err == nil:
			names = append(names, name)
		case !errors.Is(err, syscall.EAGAIN):
			t.Fatal(err)
		}
		if len(names) >= shardAt {
			<-tick.C
		}
		if time.Now().After(end) {
			t.Fatalf("not sharded with %d entries", len(names))
		}
	}
	cancel()
	for range j.nodes {
		<-ended
	}
	j.settle()
	j.wantNames(root, names)
}

// TestChangesMeanwhile: at each call of a split, one entry is created, one removed and one replaced.
func TestChangesMeanwhile(t *testing.T) {
	j := newJob(t, 3)
	want := map[string]metadata.Ino{}
	for _, name := range j.fill(300) {
		want[name] = j.ino(root, name)
	}
	s := j.nodes[0].s
	shut := 0
	j.hook = func(call int) {
		if call == 0 || j.sharded(root) {
			return
		}
		name := fmt.Sprint("new", call)
		a, err := s.Create(ctx, root, name, metadata.New{Mode: syscall.S_IFREG})
		if errors.Is(err, syscall.EAGAIN) {
			shut++
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		want[name] = a.Ino
		old, over := fmt.Sprintf("f%04d", call), fmt.Sprintf("f%04d", 299-call)
		if _, err := s.Unlink(ctx, root, old); err != nil {
			t.Fatal(err)
		}
		delete(want, old)
		if _, err := s.Rename(ctx, metadata.Rename{Dir: root, Name: name, NewDir: root, NewName: over}); err != nil {
			t.Fatal(err)
		}
		want[over] = a.Ino
		delete(want, name)
	}
	j.mustSplit()
	j.hook = nil
	if shut == 0 {
		t.Error("it was never shut")
	}
	var names []string
	for name, ino := range want {
		names = append(names, name)
		if got := j.ino(root, name); got != ino {
			t.Errorf("%s names %v, want %v", name, got, ino)
		}
	}
	j.wantNames(root, names)
}

// TestSplitTooLarge: a directory whose split is too large stays whole, its drafts are removed, and it is not retried.
func TestSplitTooLarge(t *testing.T) {
	j := newJob(t, 3)
	names := j.fill(4 * shardAt)
	j.nodes[0].s.SetMirror(func(b []byte) (func(), error) {
		if len(b) > 1000 {
			return nil, fmt.Errorf("large: %w", syscall.EMSGSIZE)
		}
		return func() {}, nil
	})
	if err := j.split(); !errors.Is(err, syscall.EMSGSIZE) || j.sharded(root) {
		t.Fatalf("Split: %v, sharded %v, want EMSGSIZE and no", err, j.sharded(root))
	}
	for _, n := range j.nodes[1:] {
		if dirs := n.s.ShardDirs(); len(dirs) != 0 {
			t.Errorf("node %d has shards of %v", n.id, dirs)
		}
	}
	j.calls = 0
	if err := j.split(); err != nil || j.calls > 0 {
		t.Errorf("the second Split = %v after %d calls, want none", err, j.calls)
	}
	if err := j.create(root, "new"); err != nil {
		t.Fatal(err)
	}
	j.wantNames(root, append(names, "new"))
}

// TestKilledWhileSplitting kills each node at each call of a split, before and after the call took effect. Then the
// directory is sharded or not, every entry is present exactly once, and it can be split.
func TestKilledWhileSplitting(t *testing.T) {
	for victim := range metadata.NodeID(3) {
		for _, after := range []bool{false, true} {
			name := fmt.Sprintf("node %d, after %v", victim, after)
			t.Run(name, func(t *testing.T) {
				for at := 1; killedWhileSplitting(t, victim, at, after); at++ {
				}
			})
		}
	}
}

func killedWhileSplitting(t *testing.T, victim metadata.NodeID, at int, after bool) (killed bool) {
	j := newJob(t, 3)
	names := j.fill(shardAt)
	j.killAt(victim, at, after, &killed)
	err := j.split()
	j.hook = nil
	if !killed {
		return false
	}
	j.revive()
	j.settle()
	if err == nil && !j.sharded(root) {
		t.Fatalf("call %d: Split is done, and the directory is not sharded", at)
	}
	for _, n := range j.nodes[1:] {
		if dirs := n.s.ShardDirs(); len(dirs) != 0 != j.sharded(root) {
			t.Fatalf("call %d: sharded is %v, and node %d has shards of %v", at, j.sharded(root), n.id, dirs)
		}
	}
	j.wantNames(root, names)
	j.mustSplit()
	j.wantNames(root, names)
	if err := j.create(root, "new"); err != nil {
		t.Fatal(err)
	}
	j.wantNames(root, append(names, "new"))
	j.settle()
	if a, err := j.nodes[0].s.Getattr(ctx, root); err != nil || a.Nlink != 2+5 {
		t.Fatalf("call %d: the directory has %d links, %v", at, a.Nlink, err)
	}
	return true
}

// killAt kills a node at call number at, before or after the call takes effect.
func (j *job) killAt(victim metadata.NodeID, at int, after bool, killed *bool) {
	due := false
	j.calls = 0
	j.hook = func(call int) {
		if call == at {
			due = true
		}
		if due && !*killed && (call == 0) == after {
			*killed = true
			j.kill(victim)
		}
	}
}

// empty removes all entries of the root.
func (j *job) empty() {
	j.Helper()
	for _, name := range j.names(root) {
		if err := j.unlink(root, name); err != nil {
			j.Fatal(err)
		}
	}
}

// TestMerge: a sharded directory is merged if, and only if, it is empty.
func TestMerge(t *testing.T) {
	j := newJob(t, 3)
	j.fill(shardAt)
	j.mustSplit()
	d := j.nodes[0].d
	names := j.names(root)
	for i, name := range names {
		if i%20 == 0 || i > len(names)-4 {
			if err := d.Merge(ctx, root); !errors.Is(err, syscall.ENOTEMPTY) {
				t.Fatalf("Merge with %d entries = %v", len(names)-i, err)
			}
		}
		if err := j.unlink(root, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Merge(ctx, root); err != nil || j.sharded(root) {
		t.Fatalf("Merge = %v", err)
	}
	if err := d.Merge(ctx, root); err != nil {
		t.Errorf("Merge of a directory without shards = %v", err)
	}
	if a, err := j.nodes[0].s.Getattr(ctx, root); err != nil || a.Nlink != 2 {
		t.Errorf("the directory has %d links, %v", a.Nlink, err)
	}
	j.settle()
	for _, n := range j.nodes[1:] {
		if dirs := n.s.ShardDirs(); len(dirs) != 0 {
			t.Errorf("node %d has shards of %v", n.id, dirs)
		}
	}
	names = j.fill(shardAt)
	j.mustSplit()
	j.wantNames(root, names)
}

// doubt gives the next commit of more than size bytes at node 0 an unknown outcome, lets the two after it fail, and
// later ones succeed. It returns the number of such commits.
func (j *job) doubt(size int) *atomic.Int64 {
	made := new(atomic.Int64)
	j.nodes[0].s.SetMirror(func(b []byte) (func(), error) {
		if len(b) <= size {
			return func() {}, nil
		}
		switch made.Add(1) {
		case 1:
			return nil, fmt.Errorf("no answer: %w: %w", metadata.ErrUnknownOutcome, syscall.ETIMEDOUT)
		case 2:
			return nil, fmt.Errorf("large: %w", syscall.EMSGSIZE)
		case 3:
			return nil, fmt.Errorf("replaced: %w: %w", metadata.ErrUnknownOutcome, syscall.EAGAIN)
		}
		return func() {}, nil
	})
	return made
}

// settleDoubt runs node 0 until the root is sharded, or is not, as wanted.
func (j *job) settleDoubt(sharded bool) {
	j.Helper()
	run, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		j.nodes[0].d.Run(run)
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); j.sharded(root) != sharded || j.nodes[0].s.Resharding(root); <-tick.C {
		if time.Now().After(end) {
			j.Fatal("the commit in doubt is not settled")
		}
	}
	cancel()
	<-ended
}

// TestSplitInDoubt: a split that a partner may have is not rolled back, and its shards stay until the outcome is known.
func TestSplitInDoubt(t *testing.T) {
	j := newJob(t, 3)
	names := j.fill(4 * shardAt)
	made := j.doubt(1000)
	if err := j.split(); !errors.Is(err, metadata.ErrUnknownOutcome) {
		t.Fatalf("Split = %v, want an unknown outcome", err)
	}
	var busy *metadata.Resharding
	if err := j.create(root, "meanwhile"); !errors.As(err, &busy) {
		t.Errorf("create in a directory that may be split = %v, want Resharding", err)
	}
	for _, n := range j.nodes[1:] {
		if dirs := n.s.ShardDirs(); len(dirs) != 1 {
			t.Errorf("node %d has shards of %v, want the root", n.id, dirs)
		}
		if err := n.d.Report(ctx); !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("report of node %d = %v, want EAGAIN: it is not known", n.id, err)
		}
	}
	j.settleDoubt(true)
	j.settle()
	j.wantNames(root, names)
	if made.Load() != 4 {
		t.Errorf("the split was committed %d times, want 4", made.Load())
	}
}

// TestMergeInDoubt does for a merge what TestSplitInDoubt does for a split.
func TestMergeInDoubt(t *testing.T) {
	j := newJob(t, 3)
	j.fill(shardAt)
	j.mustSplit()
	j.empty()
	made := j.doubt(0)
	if err := j.nodes[0].d.Merge(ctx, root); !errors.Is(err, metadata.ErrUnknownOutcome) {
		t.Fatalf("Merge = %v, want an unknown outcome", err)
	}
	var busy *metadata.Resharding
	for i := range 10 { // on all nodes
		if err := j.create(root, fmt.Sprint("meanwhile", i)); !errors.As(err, &busy) {
			t.Errorf("create in a directory that may be merged = %v, want Resharding", err)
		}
	}
	j.settleDoubt(false)
	j.settle()
	if made.Load() < 4 {
		t.Errorf("the merge was committed %d times, want 4", made.Load())
	}
	j.wantNames(root, j.fill(20))
}

// TestMergeUnreached: an unreachable shard is not assumed to be empty.
func TestMergeUnreached(t *testing.T) {
	j := newJob(t, 3)
	j.fill(shardAt)
	j.mustSplit()
	j.empty()
	j.kill(2)
	if err := j.nodes[0].d.Merge(ctx, root); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Merge = %v, want EIO", err)
	}
	j.revive()
	j.settle()
	names := j.fill(20) // all shards have thawed
	j.wantNames(root, names)
}

// TestShardStoodInFor: a shard of a lost home is on the stand-in: it can be merged, and reports there what the stand-in
// may have missed.
func TestShardStoodInFor(t *testing.T) {
	j := newJob(t, 3)
	j.fill(shardAt)
	j.mustSplit()
	j.empty()
	j.view, _ = j.view.WithPartner(2, 0, cluster.Partner{Node: 1, Since: j.view.Epoch})
	j.view = j.view.WithState(2, cluster.Down, "")
	j.nodes[2].s.ChangedShards() // clears the list
	j.nodes[2].d.Follow(ctx, func(context.Context, metadata.Epoch) (cluster.Map, error) { return j.view, syscall.EINTR })
	if got := j.nodes[2].s.ChangedShards(); !slices.Contains(got, root) {
		t.Errorf("the stand-in reports the shards of %v, want the root", got)
	}
	if err := j.nodes[0].d.Merge(ctx, root); err != nil || j.sharded(root) {
		t.Errorf("Merge = %v, want nil", err)
	}
}

// TestKilledWhileMerging does for a merge what TestKilledWhileSplitting does for a split.
func TestKilledWhileMerging(t *testing.T) {
	for victim := range metadata.NodeID(3) {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("node %d, after %v", victim, after), func(t *testing.T) {
				for at := 1; killedWhileMerging(t, victim, at, after); at++ {
				}
			})
		}
	}
}

func killedWhileMerging(t *testing.T, victim metadata.NodeID, at int, after bool) (killed bool) {
	j := newJob(t, 3)
	j.fill(shardAt)
	j.mustSplit()
	j.empty()
	j.settle()
	j.killAt(victim, at, after, &killed)
	err := j.nodes[0].d.Merge(ctx, root)
	j.hook = nil
	if !killed {
		return false
	}
	j.revive()
	j.settle()
	if err == nil && j.sharded(root) {
		t.Fatalf("call %d: Merge is done, and the directory is sharded", at)
	}
	names := j.fill(20)
	j.wantNames(root, names)
	j.empty()
	if err := j.nodes[0].d.Merge(ctx, root); err != nil || j.sharded(root) {
		t.Fatalf("call %d: Merge again = %v", at, err)
	}
	return true
}

// TestLateOrders: orders for an earlier split, or an earlier freeze, have no effect.
func TestLateOrders(t *testing.T) {
	j := newJob(t, 2)
	j.fill(shardAt)
	j.mustSplit()
	home, far := j.nodes[0].s, j.nodes[1].s
	old, _ := home.Shards(root)
	j.empty()
	order := func(sec metadata.Shard, o metadata.ShardOrder, freeze uint64) error {
		return far.ChangeShard(ctx, metadata.ShardChange{Shard: sec, Order: o, Freeze: freeze})
	}
	check := func(what string, err error, want error) {
		t.Helper()
		if want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s = %v, want %v", what, err, want)
		}
	}
	check("Freeze", order(old, metadata.ShardFreeze, 7), nil)
	check("Thaw of another freeze", order(old, metadata.ShardThaw, 6), nil)
	if !far.ShardPending(root) {
		t.Error("a freeze was thawed by the order of another")
	}
	r, err := far.ShardReport(root)
	check("Report", err, nil)
	check("Freeze again", order(old, metadata.ShardFreeze, 8), nil)
	check("Answer to an older question", far.ApplyAnswer(r, metadata.ShardAnswer{State: metadata.ShardActive}), nil)
	if !far.ShardPending(root) {
		t.Error("a freeze was thawed by an answer to an older question")
	}
	check("Thaw", order(old, metadata.ShardThaw, 8), nil)
	check("Drop of a shard in use", order(old, metadata.ShardDrop, 0), syscall.EBUSY)
	check("Merge", j.nodes[0].d.Merge(ctx, root), nil)
	names := j.fill(shardAt)
	j.mustSplit()
	check("Drop of a shard that was", order(old, metadata.ShardDrop, 0), syscall.ESTALE)
	check("Fill of a shard that was", far.FillShard(ctx, old, []metadata.Entry{{Name: "x", Ino: 1, Mode: 1}}), syscall.ESTALE)
	check("Make of a shard that was", far.CreateShard(ctx, metadata.NewShard{
		Shard: old, Epoch: 1, Nodes: []metadata.NodeID{0, 1}, Attr: metadata.Attr{Mode: syscall.S_IFDIR},
	}), syscall.ESTALE)
	present, _ := home.Shards(root)
	check("Fill of a shard in use", far.FillShard(ctx, present, nil), syscall.EBUSY)
	j.wantNames(root, names)
}

// TestSetAttr: once a directory's attributes are set, new entries on every node inherit from them.
func TestSetAttr(t *testing.T) {
	j := newJob(t, 3)
	j.fill(shardAt)
	j.mustSplit()
	home := j.nodes[0]
	for _, gid := range []uint32{7, 8} {
		a, err := home.s.Setattr(ctx, root, metadata.Change{Set: metadata.SetMode | metadata.SetGID, Mode: syscall.S_ISGID | 0o770, GID: gid})
		if err != nil {
			t.Fatal(err)
		}
		home.d.SetAttr(ctx, root, a)
		for i := range 30 {
			name := fmt.Sprintf("g%d.%d", gid, i)
			if err := j.create(root, name); err != nil {
				t.Fatal(err)
			}
			ino := j.ino(root, name)
			if a, err := j.nodes[ino.Home()].s.Getattr(ctx, ino); err != nil || a.GID != gid {
				t.Fatalf("%s on node %d has group %d, %v, want %d", name, ino.Home(), a.GID, err, gid)
			}
		}
	}
}

// TestSetAttrMissed: a node that missed new attributes gets them when it returns.
func TestSetAttrMissed(t *testing.T) {
	j := newJob(t, 2)
	j.fill(shardAt)
	j.mustSplit()
	j.kill(1)
	a, err := j.nodes[0].s.Setattr(ctx, root, metadata.Change{Set: metadata.SetMode | metadata.SetGID, Mode: syscall.S_ISGID | 0o770, GID: 9})
	if err != nil {
		t.Fatal(err)
	}
	j.nodes[0].d.SetAttr(ctx, root, a)
	j.revive()
	j.settle()
	for i := range 20 {
		name := fmt.Sprint("g", i)
		if err := j.create(root, name); err != nil {
			t.Fatal(err)
		}
		ino := j.ino(root, name)
		if a, err := j.nodes[ino.Home()].s.Getattr(ctx, ino); err != nil || a.GID != 9 {
			t.Fatalf("%s on node %d has group %d, %v", name, ino.Home(), a.GID, err)
		}
	}
}

// TestAttributes: link count and times of a sharded directory include changes on all nodes, and a later explicit time
// is kept.
func TestAttributes(t *testing.T) {
	j := newJob(t, 3)
	j.fill(shardAt)
	j.mustSplit()
	s := j.nodes[0].s
	attr := func() metadata.Attr {
		t.Helper()
		j.settle()
		a, err := s.Getattr(ctx, root)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	before := attr()
	var dirs []string
	for i := range 12 {
		dirs = append(dirs, fmt.Sprint("sub", i))
		err := j.on(root, dirs[i], func(s *pebblestore.Store) error {
			_, err := s.Mkdir(ctx, root, dirs[i], metadata.New{Mode: 0o755})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	a := attr()
	if a.Nlink != before.Nlink+12 || a.Mtime <= before.Mtime {
		t.Errorf("after 12 directories: %+v, before %+v", a, before)
	}
	for _, name := range dirs[:7] {
		if err := j.on(root, name, func(s *pebblestore.Store) error { return s.Rmdir(ctx, root, name) }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Setattr(ctx, root, metadata.Change{Set: metadata.SetMtime, Mtime: 42}); err != nil {
		t.Fatal(err)
	}
	if a = attr(); a.Nlink != before.Nlink+5 || a.Mtime != 42 {
		t.Errorf("after 7 of them went: %d links, %d before; mtime %d, want 42", a.Nlink, before.Nlink, a.Mtime)
	}
	j.kill(0)
	j.revive()
	s = j.nodes[0].s
	if again := attr(); again.Nlink != a.Nlink {
		t.Errorf("after a restart of the home: %d links, want %d", again.Nlink, a.Nlink)
	}
	if got := slices.Contains(j.names(root), dirs[11]); !got {
		t.Errorf("%s is not listed", dirs[11])
	}
}
