package rebuild

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// job is nodes with stores, guards and rebuilders, and one client. All of them see the registry's view.
type job struct {
	t *testing.T
	*nodetest.Registry
	members []*member
	attrs   map[metadata.Ino]metadata.Attr // of all homes
	client  *stripe.Data
	spare   int64 // space that copies leave free

	mu   sync.Mutex
	lose func() bool // guarded by peerData's mu; whether the next range is delayed
	late []func()    // guarded by peerData's mu; each delivers a delayed range
}

type member struct {
	node  *nodetest.Node
	store *chunkstore.Store
	guard *Guard
	r     *Rebuilder
}

const chunk = 64 << 10

func newJob(t *testing.T, n int) *job {
	t.Helper()
	v := nodetest.View(n)
	v.Copied = true
	j := &job{t: t, Registry: nodetest.NewRegistry(v), attrs: make(map[metadata.Ino]metadata.Attr)}
	net := nodetest.NewNetwork()
	for i := range n {
		m := &member{node: nodetest.Join(t, metadata.NodeID(i), j.Registry, net)}
		var err error
		if m.store, err = chunkstore.Open(chunkstore.Config{Dirs: []string{t.TempDir()}, Capacity: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.store.Close() }) // only read from here on
		m.guard = NewGuard(m.node.Self(), j.View)
		j.members = append(j.members, m)
		j.start(i)
		m.node.Serve(j.delayed(m.guard.Handlers(m.store, func(int64) int64 { return j.spare })[wire.OpCopyRange]))
		m.node.Serve(node.Handlers{
			wire.OpSync: func(ctx context.Context, r *rpc.Request, _ *rpc.Response) error {
				return m.store.Sync(ctx, wire.InoOf(r.Body))
			},
			wire.OpRemoveObject: m.guard.Writes(func(ctx context.Context, r *rpc.Request, _ *rpc.Response) error {
				return m.store.Remove(ctx, wire.InoOf(r.Body))
			}),
		})
	}
	j.client = stripe.New(stripe.Config{Self: metadata.NodeID(n), Nodes: clientNodes{j}, Sources: sources.New(0, time.Now, nil), Log: j.members[0].node.Log(), Now: time.Now})
	return j
}

// start starts a run of a node's rebuilder.
func (j *job) start(i int) {
	m := j.members[i]
	m.guard.Lease.Renew(time.Now(), time.Hour)
	m.r = New(Config{
		Node: m.node, Run: metadata.Run(time.Now().UnixNano()), Guard: m.guard, Data: m.store, Parts: 1, Pace: rate.New(1<<40, nil),
		List: func(uint8) (all []metadata.Ino, err error) { // from the parts that contain the files' objects
			for ino := range j.attrs {
				inos, err := m.store.List(uint8(ino), metadata.Ino.Copied)
				if err != nil {
					return nil, err
				}
				all = append(all, inos...)
			}
			return all, nil
		},
		Attr: func(_ context.Context, ino metadata.Ino) (metadata.Attr, error) {
			a, ok := j.attrs[ino]
			if !j.View().Map.HomeServes(ino.Home()) {
				return a, fmt.Errorf("inode %v: %w", ino, syscall.EHOSTDOWN)
			}
			if !ok {
				return a, fmt.Errorf("inode %v: %w", ino, syscall.ENOENT)
			}
			return a, nil
		},
	})
}

// delayed wraps h so that some ranges reach it only after they were given up.
func (j *job) delayed(h rpc.Handler) node.Handlers {
	return node.Handlers{wire.OpCopyRange: func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		j.mu.Lock()
		late := j.lose != nil && j.lose()
		if late {
			q := &rpc.Request{Op: r.Op, Peer: r.Peer, Epoch: r.Epoch, Body: bytes.Clone(r.Body), Data: bytes.Clone(r.Data)}
			j.late = append(j.late, func() { _ = h(context.Background(), q, new(rpc.Response)) }) // its reply is discarded
		}
		j.mu.Unlock()
		if late {
			return syscall.ETIMEDOUT
		}
		return h(ctx, r, resp)
	}}
}

// clientNodes shows the nodes as a client with the newest map sees them.
type clientNodes struct{ j *job }

func (c clientNodes) at(id metadata.NodeID) peerData { return peerData{c.j.members[id].store, c.j, id} }

func (c clientNodes) Data(id metadata.NodeID) (datapath.Store, error) { return c.at(id), nil }

func (c clientNodes) CopiesOf(p cluster.Part) cluster.Copies { return c.j.View().Map.CopiesOf(p) }

func (c clientNodes) Where([]metadata.NodeID, *metadata.Attr, metadata.NodeID, int64) []metadata.NodeID {
	return nil // there are no datasets
}

// peerData is a node's data as other nodes reach it: unreachable while the node is down.
type peerData struct {
	datapath.Store
	j  *job
	id metadata.NodeID
}

func (g peerData) write(ino metadata.Ino, fn func() error) error {
	if n, _ := g.j.View().Map.Node(g.id); !n.Serves() {
		return fmt.Errorf("node %d: %w", g.id, syscall.EHOSTDOWN)
	}
	return g.j.members[g.id].guard.Write(ino, g.j.View().Map.Epoch, fn)
}

func (g peerData) WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	return g.write(ino, func() error { return g.Store.WriteAt(ctx, ino, p, off) })
}

func (g peerData) Truncate(ctx context.Context, ino metadata.Ino, size int64) error {
	return g.write(ino, func() error { return g.Store.Truncate(ctx, ino, size) })
}

func (g peerData) Remove(ctx context.Context, ino metadata.Ino) error {
	return g.write(ino, func() error { return g.Store.Remove(ctx, ino) })
}

// file is a file of the job and its expected content.
type file struct {
	metadata.Attr
	order []metadata.NodeID
	want  []byte
}

func (j *job) create(ino metadata.Ino, l metadata.Layout) *file {
	m := j.View().Map
	l.ChunkSize, l.Copies, l.Epoch = chunk, 2, m.Epoch
	f := &file{Attr: metadata.Attr{Ino: ino, Layout: l}, order: m.Order(ino, l)}
	j.attrs[ino] = f.Attr
	return f
}

func (j *job) write(f *file, b []byte, off int64) {
	j.t.Helper()
	if n, _, err := j.client.Write(j.t.Context(), &f.Attr, f.order, b, off); n != len(b) || err != nil {
		j.t.Fatalf("Write = %d, %v", n, err)
	}
	f.want = append(f.want, make([]byte, max(int(off)+len(b)-len(f.want), 0))...)
	copy(f.want[off:], b)
	j.resized(f)
}

// resize truncates or extends a file.
func (j *job) resize(f *file, size int64) {
	j.t.Helper()
	if size < f.Size {
		if err := j.client.Cut(j.t.Context(), &f.Attr, f.order, size); err != nil {
			j.t.Fatal(err)
		}
	}
	f.want = append(f.want[:min(size, f.Size)], make([]byte, max(size-f.Size, 0))...)
	j.resized(f)
}

func (j *job) resized(f *file) {
	f.Size = int64(len(f.want))
	j.attrs[f.Ino] = f.Attr
}

// make makes the copies that the map wants, on all nodes.
func (j *job) make() {
	j.t.Helper()
	for _, m := range j.members {
		for try := 0; !m.r.follow(j.t.Context(), j.View()); try++ {
			if try == 20 {
				j.t.Fatalf("node %d does not get on: %+v", m.node.Self(), m.r.Mark())
			}
		}
	}
}

// restore runs until all copies are made and count.
func (j *job) restore() {
	j.t.Helper()
	j.make()
	j.Change(func(v cluster.View) cluster.View {
		for _, m := range j.members {
			if n, _ := v.Map.Node(m.node.Self()); n.Serves() && v.Map.Unrestored() && m.r.Mark().Epoch < v.Map.Changed() {
				j.t.Errorf("node %d has made nothing by epoch %d: %+v", n.ID, v.Map.Changed(), m.r.Mark())
			}
		}
		v.Map, _ = v.Map.WithRestored(v.Map.Changed())
		return v
	})
}

// check compares all copies that count with the expected content, and returns the lowest number of copies of a part.
func (j *job) check(when string, f *file) (least int) {
	j.t.Helper()
	m := j.View().Map
	parts := cluster.Parts(f.Ino, f.Layout, f.order)
	first := make([]metadata.NodeID, len(parts))
	for k, p := range parts {
		first[k] = p.Copies[0]
	}
	least = 2
	for _, s := range datapath.Spans(chunk, first, 0, f.Size) {
		for k, p := range parts {
			if first[k] != s.Node {
				continue
			}
			now := m.CopiesOf(p).Current
			least = min(least, len(now))
			for _, c := range now {
				got := make([]byte, s.Len)
				if _, err := j.members[c.Node].store.ReadAt(j.t.Context(), p.Object(c.Node), got, s.Off); err != nil || !bytes.Equal(got, f.want[s.Pos:][:s.Len]) {
					j.t.Fatalf("%s: inode %v, %d bytes at %d: node %d has others, %v", when, f.Ino, s.Len, s.Pos, c.Node, err)
				}
			}
		}
	}
	return least
}

// TestRestore: a file that has lost a copy gets another one, with its own object, and the old copy of a node that
// returns is replaced.
func TestRestore(t *testing.T) {
	t.Parallel()
	j := newJob(t, 3)
	f := j.create(metadata.LiveIno(0, 1000), metadata.Layout{Kind: metadata.Local})
	j.write(f, bytes.Repeat([]byte("old"), 1<<20), 0)
	j.SetState(1, cluster.Down)
	j.restore()
	if n := j.check("restored", f); n != 2 {
		t.Errorf("%d copies", n)
	}
	if m := j.members[0].r.Mark(); m.Copied != f.Size {
		t.Errorf("%+v: %d bytes were to be copied", m, f.Size)
	}
	j.write(f, []byte("new"), 1<<20)
	j.SetState(1, cluster.Up)
	j.SetState(2, cluster.Down)
	j.restore()
	if n := j.check("restored again", f); n != 2 {
		t.Errorf("%d copies", n)
	}
}

// TestCutParts: data that was truncated while a node was away does not reappear when the node's old object counts
// again, even if the copy from which it is made was itself made from an empty one.
func TestCutParts(t *testing.T) {
	t.Parallel()
	j := newJob(t, 4)
	j.SetState(3, cluster.Leaving) // it gets no copies, but stays the home
	f := j.create(metadata.LiveIno(3, 1000), metadata.Layout{Kind: metadata.Local})
	j.write(f, bytes.Repeat([]byte{1}, chunk), 0)
	j.SetState(1, cluster.Down)
	j.make() // on node 2
	j.SetState(2, cluster.Down)
	j.resize(f, 0)
	j.SetState(1, cluster.Up)
	j.restore()
	j.resize(f, chunk)
	j.check("one node is back", f)
	j.resize(f, 0)
	j.SetState(0, cluster.Down)
	j.SetState(2, cluster.Up)
	j.restore()
	j.resize(f, chunk)
	if n := j.check("another one is back", f); n != 2 {
		t.Errorf("%d copies", n)
	}
}

// TestLostHome: while the home of a file is lost, files of other homes get their second copies; this file gets it when
// its home returns, including writes made in between through open descriptors.
func TestLostHome(t *testing.T) {
	t.Parallel()
	j := newJob(t, 4)
	open := j.create(metadata.LiveIno(3, 1000), metadata.Layout{Kind: metadata.Local})
	other := j.create(metadata.LiveIno(0, 1001), metadata.Layout{Kind: metadata.Local})
	j.write(open, bytes.Repeat([]byte{1}, chunk), 0)
	j.write(other, bytes.Repeat([]byte{1}, chunk), 0)
	j.SetState(1, cluster.Down)
	j.SetState(3, cluster.Down)
	j.restore()
	if n, m := j.check("a home is lost", open), j.check("a home is lost", other); n != 1 || m != 2 {
		t.Errorf("%d copies of its file, %d of another one", n, m)
	}
	j.write(open, []byte("new"), 100)
	j.SetState(3, cluster.Up)
	j.restore()
	if n := j.check("the home is back", open); n != 2 {
		t.Errorf("%d copies", n)
	}
}

// TestRandomHistories: after any writes, truncates and extensions while nodes are lost and return, all copies that
// count have the same bytes.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	arrived := 0
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 7))
		j := newJob(t, 4)
		losses := rand.New(rand.NewPCG(seed, 8))
		j.lose = func() bool { return losses.IntN(8) == 0 }
		files := []*file{
			j.create(metadata.LiveIno(0, 1000), metadata.Layout{Kind: metadata.Local}),
			j.create(metadata.LiveIno(1, 1001), metadata.Layout{Kind: metadata.Local, Node: 2}),
			j.create(metadata.LiveIno(2, 1002), metadata.Layout{}),
		}
		for step := range 60 {
			id := metadata.NodeID(r.IntN(4))
			n, _ := j.View().Map.Node(id)
			f := files[r.IntN(len(files))]
			at := r.Int64N(3 * chunk)
			switch r.IntN(10) {
			case 0, 1:
				switch {
				case !n.Serves():
					j.SetState(id, cluster.Up)
				case j.whole(id, files):
					j.SetState(id, cluster.Down)
				}
			case 2, 3:
				j.write(f, bytes.Repeat([]byte{byte(step + 1)}, 1+r.IntN(chunk)), at)
			case 4:
				j.resize(f, at)
			case 5:
				j.resize(f, 0)
			case 6:
				if k := len(j.late); k > 0 {
					call := j.late[r.IntN(k)]
					call()
					arrived++
				}
			case 7:
				if n.Serves() {
					j.members[id].r.follow(t.Context(), j.View())
				}
			default:
				j.restore()
			}
			for _, f := range files {
				j.check(fmt.Sprintf("seed %d, step %d", seed, step), f)
			}
		}
	}
	if arrived < 4 {
		t.Errorf("%d ranges were late", arrived)
	}
}

// TestLateRanges: a call that was given up has no effect if it arrives after another try, or when the copy counts.
func TestLateRanges(t *testing.T) {
	t.Parallel()
	j := newJob(t, 3)
	f := j.create(metadata.LiveIno(0, 1000), metadata.Layout{Kind: metadata.Local})
	j.write(f, bytes.Repeat([]byte{1}, chunk), 0)
	j.SetState(1, cluster.Down)
	calls := 0
	j.lose = func() bool { calls++; return calls == 1 || calls == 3 } // the first of a try, and the first with bytes of the next
	j.make()
	if len(j.late) != 2 {
		t.Fatalf("%d calls were given up", len(j.late))
	}
	j.write(f, bytes.Repeat([]byte{2}, chunk), 0)
	for _, call := range j.late {
		call()
	}
	j.restore()
	j.check("late", f)
	for _, call := range j.late {
		call()
	}
	if n := j.check("later", f); n != 2 {
		t.Errorf("%d copies", n)
	}
}

// TestRangeAfterRemoval: a range that arrives after its file was removed does not recreate the object.
func TestRangeAfterRemoval(t *testing.T) {
	t.Parallel()
	j := newJob(t, 3)
	f := j.create(metadata.LiveIno(0, 1000), metadata.Layout{Kind: metadata.Local})
	j.write(f, bytes.Repeat([]byte{1}, chunk), 0)
	j.SetState(1, cluster.Down)
	calls := 0
	j.lose = func() bool { // the first call with bytes; the file is removed by the time it is given up
		if calls++; calls == 2 {
			delete(j.attrs, f.Ino)
		}
		return calls == 2
	}
	j.make()
	if len(j.late) != 1 {
		t.Fatalf("%d calls were given up", len(j.late))
	}
	for _, m := range j.members {
		inos, err := m.store.List(uint8(f.Ino), metadata.Ino.Copied)
		for _, object := range inos {
			err = errors.Join(err, m.guard.Remove(t.Context(), object, m.store.Remove))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	j.late[0]()
	for i, m := range j.members {
		if inos, err := m.store.List(uint8(f.Ino), metadata.Ino.Copied); err != nil || len(inos) > 0 {
			t.Errorf("node %d has the objects %v, %v", i, inos, err)
		}
	}
}

// TestForgetWaitsAlone: while a range is stored and forget waits for it, other ranges are accepted.
func TestForgetWaitsAlone(t *testing.T) {
	t.Parallel()
	g := NewGuard(0, nil)
	slow := g.lockIntake(metadata.LiveIno(0, 1))
	forgotten := make(chan struct{})
	go func() { g.forget(cluster.Map{}); close(forgotten) }()
	for range 1000 {
		g.lockIntake(metadata.LiveIno(0, 2)).mu.Unlock()
	}
	select {
	case <-forgotten:
		t.Error("a copy is forgotten whose range is being stored")
	default:
	}
	slow.mu.Unlock()
	<-forgotten
	if n := len(g.intakes); n > 1 {
		t.Errorf("%d copies are known", n)
	}
}

// TestRoom: a copy is started only where it leaves some room for writes.
func TestRoom(t *testing.T) {
	t.Parallel()
	j := newJob(t, 3)
	f := j.create(metadata.LiveIno(0, 1000), metadata.Layout{Kind: metadata.Local})
	j.write(f, bytes.Repeat([]byte{1}, 1<<20), 0)
	j.SetState(1, cluster.Down)
	target := j.members[2].store
	s, err := target.Space(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	j.spare = s.Free - 1<<20 + 1
	if j.members[0].r.follow(t.Context(), j.View()) {
		t.Error("the copy was made")
	}
	if m := j.members[0].r.Mark(); m.Copied > 0 || m.Bytes == 0 {
		t.Errorf("%+v", m)
	}
	j.spare = s.Free / 2
	j.restore()
	if n := j.check("with room", f); n != 2 {
		t.Errorf("%d copies", n)
	}
}

// whole reports whether no part would be lost along with node id.
func (j *job) whole(id metadata.NodeID, files []*file) bool {
	after := j.View().Map.WithState(id, cluster.Down, "")
	for _, f := range files {
		for _, p := range cluster.Parts(f.Ino, f.Layout, f.order) {
			if len(after.CurrentOf(p)) == 0 {
				return false
			}
		}
	}
	return true
}
