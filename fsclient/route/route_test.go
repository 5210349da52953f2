package route

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// fakeStore is a node's metadata store that knows its node.
type fakeStore struct {
	metadata.NodeStore
	id metadata.NodeID
}

func newRouter(t *testing.T) (*Router, *atomic.Pointer[cluster.View]) {
	t.Helper()
	m := cluster.NewMap(7, []string{"n0", "n1", "n2"})
	for i, addr := range []string{"n0:1", "n1:1", "n2:1"} {
		m = m.WithState(metadata.NodeID(i), cluster.Up, addr)
	}
	var view atomic.Pointer[cluster.View]
	view.Store(&cluster.View{Map: m})
	return New(Config{
		Self: 0, View: func() cluster.View { return *view.Load() },
		Meta: func(id metadata.NodeID) metadata.NodeStore { return fakeStore{id: id} },
		Data: func(metadata.NodeID) datapath.Store { return nil },
	}), &view
}

func idOf(s metadata.NodeStore) metadata.NodeID { return s.(fakeStore).id }

func TestHome(t *testing.T) {
	r, view := newRouter(t)
	s, err := r.Home(metadata.LiveIno(2, 9))
	if err != nil || idOf(s) != 2 {
		t.Errorf("Home = %v, %v, want node 2", s, err)
	}
	down := view.Load().Map.WithState(2, cluster.Down, "")
	view.Store(&cluster.View{Map: down})
	if _, err := r.Home(metadata.LiveIno(2, 9)); !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("Home on a node that is down = %v, want EHOSTDOWN", err)
	}
	if _, err := r.Meta(99); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("a node that does not exist = %v, want ESTALE", err)
	}
	if local, remote := r.Calls(); local != 0 || remote != 1 {
		t.Errorf("%d local and %d remote calls, want 0 and 1", local, remote)
	}
}

// TestHomeStoodInFor: a home is alive while the node that stands in for it is, whatever the state of its own node; this
// also holds for the home on this node.
func TestHomeStoodInFor(t *testing.T) {
	for _, lost := range []metadata.NodeID{0, 2} {
		r, view := newRouter(t)
		r.here = func() error { return syscall.EAGAIN }
		m, _ := view.Load().Map.WithPartner(lost, 0, cluster.Partner{Node: 1, Since: view.Load().Map.Epoch})
		m = m.WithState(lost, cluster.Down, "")
		view.Store(&cluster.View{Map: m})
		if _, err := r.Meta(lost); err != nil || r.HomeAlive(lost) != nil {
			t.Errorf("home %d while another node stands in for it: %v, %v, want nil", lost, err, r.HomeAlive(lost))
		}
		if _, err := r.Data(2); lost == 2 && !errors.Is(err, syscall.EHOSTDOWN) {
			t.Errorf("its data = %v, want EHOSTDOWN", err)
		}
		view.Store(&cluster.View{Map: m.WithState(1, cluster.Down, "")})
		if s, err := r.Meta(lost); !errors.Is(err, syscall.EHOSTDOWN) || !errors.Is(r.HomeAlive(lost), syscall.EHOSTDOWN) {
			t.Errorf("home %d without its stand-in: %v, %v, %v, want EHOSTDOWN", lost, s, err, r.HomeAlive(lost))
		}
	}
}

// TestStandInGivenUp: a node that was given up and stands in for another one does not call itself.
func TestStandInGivenUp(t *testing.T) {
	r, view := newRouter(t)
	m, _ := view.Load().Map.WithPartner(2, 0, cluster.Partner{Node: 0, Since: view.Load().Map.Epoch})
	m = m.WithState(2, cluster.Down, "").WithState(0, cluster.Down, "")
	view.Store(&cluster.View{Map: m})
	if s, err := r.Meta(2); !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("Meta = %v, %v, want EHOSTDOWN", s, err)
	}
}

// TestRedirect: a call follows a redirect to the shards, and the next call goes there directly.
func TestRedirect(t *testing.T) {
	r, view := newRouter(t)
	dir := metadata.LiveIno(1, 9)
	e := view.Load().Map.Epoch
	want := view.Load().Map.EntryHome(dir, "x", e)
	calls := 0
	try := func(s metadata.NodeStore) (metadata.NodeID, error) {
		calls++
		if idOf(s) != want || calls == 1 {
			return 0, &metadata.Redirect{Dir: dir, Epoch: e}
		}
		return idOf(s), nil
	}
	for range 2 {
		if id, err := At(context.Background(), r, dir, "x", try); err != nil || id != want {
			t.Errorf("At = %d, %v, want %d", id, err, want)
		}
	}
	if calls != 3 || r.Split(dir) != e {
		t.Errorf("%d calls, split in epoch %d, want 3 and %d", calls, r.Split(dir), e)
	}
}

// TestFinalError: an application never gets EAGAIN, and a signal ends the retries.
func TestFinalError(t *testing.T) {
	r, _ := newRouter(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Do(ctx, r, func() (int, error) { return 0, syscall.EAGAIN })
	if !errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EAGAIN) {
		t.Errorf("entries that move for ever = %v, want EIO", err)
	}
	if _, err := Do(ctx, r, func() (int, error) { return 0, syscall.ENOENT }); err != syscall.ENOENT {
		t.Errorf("Do = %v, want ENOENT unchanged", err)
	}
}

// TestNewerMap: a layout of a later epoch waits for the map.
func TestNewerMap(t *testing.T) {
	r, view := newRouter(t)
	newer := view.Load().Map.WithState(2, cluster.Down, "")
	l := metadata.Layout{Epoch: newer.Epoch, ChunkSize: 1 << 20}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.Order(ctx, 5000, l); !errors.Is(err, syscall.EINTR) {
		t.Errorf("Order without the map = %v, want EINTR", err)
	}
	got := make(chan []metadata.NodeID, 1)
	go func() {
		order, err := r.Order(context.Background(), 5000, l)
		if err != nil {
			t.Error(err)
		}
		got <- order
	}()
	view.Store(&cluster.View{Map: newer})
	if order := <-got; len(order) != 2 {
		t.Errorf("Order = %v, want the two nodes that are up", order)
	}
}

// TestPairs: the nodes of a file with two copies match the map, also for other files, epochs and nodes, and for a map
// with lost nodes.
func TestPairs(t *testing.T) {
	r, view := newRouter(t)
	was := view.Load().Map
	m := was.WithState(1, cluster.Down, "")
	for range 2 {
		for node := range metadata.NodeID(3) {
			for _, epoch := range []metadata.Epoch{was.Epoch, m.Epoch, 0} {
				view.Store(&cluster.View{Map: m})
				l := metadata.Layout{Kind: metadata.Local, Node: node, Copies: 2, Epoch: epoch}
				got, err := r.Order(t.Context(), metadata.LiveIno(0, 9), l)
				if want := m.Order(metadata.LiveIno(0, 9), l); err != nil || !slices.Equal(got, want) {
					t.Errorf("node %d in epoch %d: %v, %v, want %v", node, epoch, got, err, want)
				}
			}
		}
	}
}

func BenchmarkPairs(b *testing.B) {
	const nodes = 1000
	m := cluster.NewMap(7, make([]string, nodes))
	var up []cluster.Change
	for i := range metadata.NodeID(nodes) {
		up = append(up, cluster.Change{ID: i, State: cluster.Up, Switch: fmt.Sprint("leaf", i/16)})
	}
	m = m.With(up)
	r := New(Config{View: func() cluster.View { return cluster.View{Map: m} }})
	l := metadata.Layout{Kind: metadata.Local, Node: 5, Copies: 2, Epoch: m.Epoch}
	for b.Loop() {
		if _, err := r.Order(b.Context(), metadata.LiveIno(0, 9), l); err != nil {
			b.Fatal(err)
		}
	}
}
