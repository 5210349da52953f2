package partner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/copies"
	"github.com/bivouacfs/bivouac/metadata/mirror"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// member is a node with records and a Partner.
type member struct {
	*Partner
	fake  *nodetest.Node
	store *pebblestore.Store
	data  *chunkstore.Store
	full  atomic.Bool
}

// job returns members on a fake network whose leader always answers.
func job(t *testing.T, n int) ([]*member, *nodetest.Registry) {
	t.Helper()
	r, net := nodetest.NewRegistry(nodetest.View(n)), nodetest.NewNetwork()
	var all []*member
	for i := range n {
		all = append(all, join(t, metadata.NodeID(i), r, net))
	}
	return all, r
}

// join starts a node with an empty disk.
func join(t *testing.T, id metadata.NodeID, r *nodetest.Registry, net *nodetest.Network) *member {
	t.Helper()
	m := new(member)
	t.Cleanup(func() { // runs after the goroutines of the node have ended
		if err := errors.Join(m.Partner.Close(), m.store.Close(), m.data.Close()); err != nil {
			t.Error(err)
		}
	})
	m.fake = nodetest.Join(t, id, r, net)
	m.open(t, t.TempDir())
	return m
}

func (m *member) open(t *testing.T, dir string) {
	t.Helper()
	var err error
	if m.store, err = pebblestore.Open(pebblestore.Config{Dir: filepath.Join(dir, "meta"), Self: m.fake.Self()}); err != nil {
		t.Fatal(err)
	}
	if m.data, err = chunkstore.Open(chunkstore.Config{Dirs: []string{filepath.Join(dir, "data")}}); err != nil {
		t.Fatal(err)
	}
	lease := new(copies.Lease)
	lease.Renew(time.Now(), time.Hour)
	m.Partner, err = Open(Config{
		Node: m.fake, Run: 1, Records: m.store, Lease: lease, Dir: filepath.Join(dir, "partner"), Patience: 300 * time.Millisecond,
		Room: func() bool { return !m.full.Load() },
		Peer: func(id metadata.NodeID) rpc.Caller { return m.fake.To(id) },
		Here: func() node.Handlers { return nil },
		Open: func(n node.Node, dir string, s *Sender) (*home.Server, error) {
			return home.Open(home.Config{Node: n, Data: m.data, Dir: dir, Run: 1, StandIn: true, Serves: s.Serves})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.fake.Serve(m.Handlers())
	m.fake.Spawn(m.Sender.run)
	m.fake.Spawn(m.Sender.record)
}

func (m *member) create(name string) error {
	dir := metadata.RootIno
	_, err := m.store.Create(context.Background(), dir, name, metadata.New{Mode: syscall.S_IFREG | 0o644})
	return err
}

// TestPartner: no copies are made before a directory asks for them; then each home has a partner, whose copy has all
// acknowledged changes, a full partner is detected, and after the loss of a partner the next node gets a copy.
func TestPartner(t *testing.T) {
	ms, r := job(t, 3)
	if err := ms[0].create("before"); err != nil {
		t.Fatal(err)
	}
	for ms[0].Serves() != nil { // until a leader has said that there is no partner
		if err := r.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	if ms[0].on || ms[0].guarded.Load() {
		t.Error("there is a mirror that nothing has asked for")
	}
	if err := ms[2].Want(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := ms[0].create("after"); err != nil {
		t.Fatal(err)
	}
	wantPartner := func(want metadata.NodeID) {
		t.Helper()
		err := r.Until(t.Context(), func(v cluster.View) bool {
			n, _ := v.Map.Node(0)
			return n.Partner.Since > 0 && n.Partner.Node == want && !n.Partner.StandsIn
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	wantPartner(1)
	ms[1].full.Store(true)
	if err := ms[0].create("full"); err != nil || ms[0].HasRoom() {
		t.Errorf("create = %v; the partner's disk is full, and the home does not know", err)
	}
	ms[0].fake.Network().Cut(1, syscall.EHOSTDOWN)
	if err := ms[0].create("failed"); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("create while the link to the partner is cut = %v, want ETIMEDOUT", err)
	}
	ms[0].fake.Network().Cut(1, nil)
	err := ms[0].create("mended")
	for range 10 { // earlier requests may still fail
		if err == nil {
			break
		}
		err = ms[0].create("mended")
	}
	if err != nil {
		t.Errorf("create when the link is mended: %v", err)
	}
	r.SetState(1, cluster.Down)
	wantPartner(2)
	r.SetState(0, cluster.Down)
	if err := ms[0].create("late"); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("create at a home that is replaced = %v, want EAGAIN", err)
	}
	if err := ms[0].Serves(); !errors.Is(err, syscall.EAGAIN) || !ms[0].Replaced() {
		t.Errorf("a home that is replaced serves: %v", err)
	}
	seat, _ := r.View().Map.Node(0)
	dir, err := ms[2].recv.seal(0, seat.Partner.Since)
	if err != nil {
		t.Fatal(err)
	}
	s, err := pebblestore.Open(pebblestore.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	es, err := s.ReadDir(t.Context(), metadata.RootIno, "", 10)
	if got := fmt.Sprint(names(es)); err != nil || got != "[after before full mended]" {
		t.Errorf("the copy has %s, %v", got, err)
	}
	if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) > 2 {
		t.Errorf("node 2 has copies %v, %v, want those of two homes", left, err)
	}
}

// TestLargeChange: a change too large for one message is refused immediately, and does not delay later ones.
func TestLargeChange(t *testing.T) {
	ms, r := job(t, 2)
	if err := ms[0].Want(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Until(t.Context(), func(v cluster.View) bool { n, _ := v.Map.Node(0); return n.Partner.Since > 0 }); err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	ms[1].fake.Serve(node.Handlers{wire.OpMirror: node.HandleFrom(func(ctx context.Context, q *rpc.Request, m *wire.MirrorReq) (node.Appender, error) {
		if len(q.Body) > wire.MaxFrame {
			sent.Add(1)
			return nil, syscall.EMSGSIZE
		}
		return ms[1].recv.onMirror(ctx, q, m)
	})})
	_, err := ms[0].Sender.add(make([]byte, wire.MaxFrame))
	if !errors.Is(err, syscall.EMSGSIZE) || errors.Is(err, metadata.ErrUnknownOutcome) || sent.Load() > 0 {
		t.Errorf("a change of %d bytes: %v, and was sent %d times, want EMSGSIZE and never", wire.MaxFrame, err, sent.Load())
	}
	if err := ms[0].create("later"); err != nil {
		t.Errorf("create after it: %v", err)
	}
}

// TestWipedHome: a home with an empty disk does not serve while another node has its records: that node stands in.
func TestWipedHome(t *testing.T) {
	ms, r := job(t, 3)
	if err := errors.Join(ms[0].Want(t.Context()), ms[0].create("a")); err != nil {
		t.Fatal(err)
	}
	refuse := make(chan struct{})
	r.Refuse = func(raftstore.Command) error {
		select {
		case <-refuse:
			return nil
		default:
			return syscall.EAGAIN
		}
	}
	wiped := join(t, 0, r, ms[0].fake.Network())
	for range 100 {
		if err := wiped.Serves(); err == nil {
			t.Fatal("a wiped home serves")
		}
		runtime.Gosched()
	}
	close(refuse)
	err := r.Until(t.Context(), func(v cluster.View) bool { n, _ := v.Map.Node(0); return n.Partner.StandsIn })
	if n, _ := r.View().Map.Node(0); err != nil || n.State != cluster.Up || n.Partner.Node != 1 {
		t.Fatalf("node 0 is %v with partner %v, %v, want one that stands in", n.State, n.Partner, err)
	}
	if err := wiped.Serves(); !errors.Is(err, syscall.EAGAIN) || !wiped.Replaced() {
		t.Errorf("a wiped home serves: %v, want EAGAIN", err)
	}
	if err := ms[0].create("late"); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("create by the daemon of before: %v, want EAGAIN", err)
	}
}

// TestSeats: the records of a lost node move from node to node with their changes. A former stand-in that was given up
// while it ran changes nothing any more; when it returns it gives the records up, gets a new copy, and serves it.
func TestSeats(t *testing.T) {
	ms, r := job(t, 3)
	if err := errors.Join(ms[0].Want(t.Context()), ms[0].create("of 0")); err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		m.fake.Spawn(func(ctx context.Context) {
			node.Follow(ctx, r, firstPause, longestWait, func(v cluster.View) bool { return m.openAll(ctx, v) })
		})
	}
	create := func(s standIn, name string) error {
		_, err := s.server.Create(t.Context(), metadata.RootIno, name, metadata.New{Mode: syscall.S_IFREG | 0o644})
		return err
	}
	old, last := standIn{}, metadata.NodeID(0)
	for _, at := range []metadata.NodeID{1, 2, 1} {
		r.SetState(last, cluster.Down)
		now, err := ms[at].at(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := create(now, fmt.Sprint("of ", at, " after ", last)); err != nil {
			t.Fatal(err)
		}
		if old.server != nil && create(old, "late") == nil {
			t.Errorf("node %d makes a change although node %d has its seat", last, at)
		}
		if last > 0 {
			r.SetState(last, cluster.Up)
		}
		want := fmt.Sprint("node", 3-at)
		if err := r.Until(t.Context(), func(v cluster.View) bool { return v.Map.Names(0).Copy == want }); err != nil {
			t.Fatal(err)
		}
		old, last = now, at
	}
	es, err := old.server.ReadDir(t.Context(), metadata.RootIno, "", 10)
	if got := fmt.Sprint(names(es)); err != nil || got != "[of 0 of 1 after 0 of 1 after 2 of 2 after 1]" {
		t.Errorf("the names are %s, %v", got, err)
	}
	for _, m := range ms[1:] {
		if left, err := filepath.Glob(filepath.Join(m.cfg.Dir, "0-*")); err != nil || len(left) != 1 {
			t.Errorf("node %d has copies %v, %v, want one of node 0", m.fake.Self(), left, err)
		}
	}
}

// TestWipedSeat: a stand-in that lost its records asks the map to give the seat to the heir. If there is none, it does
// not hand over records that no other node has.
func TestWipedSeat(t *testing.T) {
	ms, r := job(t, 4)
	record := func(seat metadata.Epoch, p metadata.NodeID) metadata.Epoch {
		since := r.View().Map.Epoch
		_, err := r.Propose(t.Context(), raftstore.Command{Kind: raftstore.KindPartner, Home: 0, Seat: seat, Partner: cluster.Partner{Node: p, Since: since}})
		if err != nil {
			t.Fatal(err)
		}
		return since
	}
	seat := record(0, 1)
	r.SetState(0, cluster.Down)
	if ms[1].openAll(t.Context(), r.View()) {
		t.Error("a seat without records is open")
	}
	if n, _ := r.View().Map.Node(0); n.Seat().Node != 1 {
		t.Fatalf("the seat is %v, want node 1: no other one has the names", n.Seat())
	}
	heir := record(seat, 2)
	if ms[1].openAll(t.Context(), r.View()) {
		t.Error("a seat without records is open")
	}
	if n, _ := r.View().Map.Node(0); n.Seat() != (cluster.Partner{Node: 2, Since: heir, StandsIn: true}) || n.Heir.Since > 0 {
		t.Errorf("the seat is %v with heir %v, want node 2", n.Seat(), n.Heir)
	}
	if !ms[1].openAll(t.Context(), r.View()) {
		t.Error("the old seat is not given up")
	}
}

// TestFullPartner: a node without room is not chosen repeatedly, whether it accepts the records or refuses them.
func TestFullPartner(t *testing.T) {
	for name, spoil := range map[string]func(*member){
		"no room": func(m *member) { m.full.Store(true) },
		"refuses": func(m *member) {
			m.fake.Serve(node.Handlers{wire.OpMirror: node.HandleFrom(func(context.Context, *rpc.Request, *wire.MirrorReq) (node.Appender, error) {
				return nil, syscall.ENOSPC
			})})
		},
	} {
		t.Run(name, func(t *testing.T) {
			ms, r := job(t, 3)
			spoil(ms[1])
			var noRoom atomic.Bool
			ms[2].fake.Serve(node.Handlers{wire.OpMirror: node.HandleFrom(func(ctx context.Context, q *rpc.Request, m *wire.MirrorReq) (node.Appender, error) {
				if m.Home == 0 && !ms[0].HasRoom() {
					noRoom.Store(true)
				}
				return ms[2].recv.onMirror(ctx, q, m)
			})})
			if err := errors.Join(ms[0].Want(t.Context()), ms[0].create("a")); err != nil {
				t.Fatal(err)
			}
			if noRoom.Load() {
				t.Error("creates have failed for a node that is not the partner")
			}
			if n, _ := r.View().Map.Node(0); n.Partner.Node != 2 {
				t.Errorf("the partner is %v, want the node with room", n.Partner)
			}
		})
	}
}

// TestAllFull: if all nodes are full, a copy that takes long stays on its node.
func TestAllFull(t *testing.T) {
	ms, r := job(t, 3)
	s := newSender(&Config{Node: ms[0].fake, Patience: time.Millisecond}, 0, 0)
	s.home = mirror.NewHome(0, 0, cluster.Partner{})
	s.avoid[1] = time.Now().Add(-time.Hour)
	to := cluster.Partner{Node: 2, Since: r.View().Map.Epoch}
	if s.declined(to, true, false) {
		t.Error("the copy goes back to a node that had no room")
	}
	if !s.declined(to, true, true) {
		t.Error("a node that refuses records keeps the stream")
	}
}

// TestIdleHome: a home without changes notices that its partner lost the copy, and makes another one.
func TestIdleHome(t *testing.T) {
	ms, r := job(t, 2)
	if err := errors.Join(ms[0].Want(t.Context()), ms[0].create("a")); err != nil {
		t.Fatal(err)
	}
	wiped := join(t, 1, r, ms[0].fake.Network())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		h := wiped.recv.of(0)
		h.mu.Lock()
		whole := h.state.Whole.Complete
		h.mu.Unlock()
		if whole {
			return
		}
		if ctx.Err() != nil {
			t.Fatal("the partner has no copy")
		}
		runtime.Gosched()
	}
}

func names(es []metadata.Entry) []string {
	all := make([]string, len(es))
	for i, e := range es {
		all[i] = e.Name
	}
	return all
}
