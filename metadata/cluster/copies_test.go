package cluster

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestOrderOfCopies: the second copy of each part is on another node than the first, for any width; a node's local
// files all have the same partner.
func TestOrderOfCopies(t *testing.T) {
	for n := 1; n <= 9; n++ {
		m := upMap(n, 5)
		for _, width := range []uint16{0, 1, 3, metadata.AllNodes} {
			for i := range 50 {
				order := m.Order(metadata.Ino(1024+i), metadata.Layout{Copies: 2, Width: width, Epoch: m.Epoch})
				if len(slices.Compact(slices.Sorted(slices.Values(order)))) != len(order) || n == 1 && len(order) != 1 || n > 1 && len(order)%2 != 0 {
					t.Fatalf("%d nodes, width %d: Order = %v", n, width, order)
				}
			}
		}
		for id := range n {
			l := metadata.Layout{Kind: metadata.Local, Node: metadata.NodeID(id), Copies: 2, Epoch: m.Epoch}
			want := []metadata.NodeID{l.Node, metadata.NodeID((id + 1) % n)}
			if n == 1 {
				want = want[:1]
			}
			if got := m.Order(1024, l); !slices.Equal(got, want) {
				t.Errorf("%d nodes: the copies of node %d are on %v, want %v", n, id, got, want)
			}
		}
	}
	m := upMap(4, 5).WithState(2, Down, "")
	l := metadata.Layout{Kind: metadata.Local, Node: 1, Copies: 2, Epoch: m.Epoch}
	if got := m.Order(1024, l); !slices.Equal(got, []metadata.NodeID{1, 3}) {
		t.Errorf("the partner of a node whose next one is down: %v", got)
	}
	if got := m.WithState(2, Up, "").Order(1024, l); !slices.Equal(got, []metadata.NodeID{1, 3}) {
		t.Errorf("the partner changes when a node returns: %v", got)
	}
}

func TestCurrent(t *testing.T) {
	type step struct {
		id metadata.NodeID
		s  State
	}
	for _, c := range []struct {
		name  string
		steps []step
		want  []metadata.NodeID // nodes of the copies on 1 and 2
	}{
		{"all serve", nil, []metadata.NodeID{1, 2}},
		{"another node is lost", []step{{3, Down}}, []metadata.NodeID{1, 2}},
		{"one is lost", []step{{1, Down}}, []metadata.NodeID{2}},
		{"it returns", []step{{1, Down}, {1, Up}}, []metadata.NodeID{2}},
		{"then the other one is lost", []step{{1, Down}, {1, Up}, {2, Down}}, nil},
		{"and returns", []step{{1, Down}, {1, Up}, {2, Down}, {2, Up}}, []metadata.NodeID{2}},
		{"both are lost", []step{{1, Down}, {2, Down}}, nil},
		{"the first to go returns", []step{{1, Down}, {2, Down}, {1, Up}}, nil},
		{"the last to go returns", []step{{1, Down}, {2, Down}, {1, Up}, {2, Up}}, []metadata.NodeID{2}},
		{"one leaves", []step{{1, Leaving}}, []metadata.NodeID{1, 2}},
		{"one is lost while it leaves", []step{{1, Leaving}, {1, Down}}, []metadata.NodeID{2}},
		{"one is lost that another one left behind", []step{{1, Leaving}, {2, Down}, {1, Down}, {2, Up}}, nil},
		{"one leaves after it was lost", []step{{1, Down}, {1, Leaving}}, []metadata.NodeID{2}},
	} {
		m := upMap(4, 5)
		since := m.Epoch
		p := Part{Local: true, Since: since, Copies: []metadata.NodeID{1, 2}}
		was := p.Copies
		for _, s := range c.steps {
			m = m.WithState(s.id, s.s, "")
			var now []metadata.NodeID
			all, _ := m.replay(p)
			for _, c := range all.Current {
				now = append(now, c.Node)
			}
			for _, id := range now {
				if !slices.Contains(was, id) {
					t.Errorf("%s: copy %d counts again", c.name, id)
				}
			}
			was = now
		}
		if got := m.CurrentOf(p); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	both := upMap(4, 5)
	since := both.Epoch
	both = both.With([]Change{{ID: 1, State: Down}, {ID: 2, State: Down}}).WithState(2, Up, "").WithState(1, Up, "")
	if got := both.CurrentOf(Part{Since: since, Copies: []metadata.NodeID{1, 2}}); !slices.Equal(got, []metadata.NodeID{2}) {
		t.Errorf("lost in one epoch: %v, want the first that returned", got)
	}
}

// TestRestored: a new copy counts once all copies are made, but not if its node or its source node was lost in between;
// two parts of a file have different objects on the same node.
func TestRestored(t *testing.T) {
	m := upMap(4, 5)
	p := Part{Ino: 1024, Local: true, Since: m.Epoch, Copies: []metadata.NodeID{1, 2}}
	want := func(what string, current, filling []metadata.NodeID) {
		t.Helper()
		var got [2][]metadata.NodeID
		c := m.CopiesOf(p)
		for i, cs := range [][]Copy{c.Current, c.Filling} {
			for _, x := range cs {
				got[i] = append(got[i], x.Node)
			}
		}
		if !slices.Equal(got[0], current) || !slices.Equal(got[1], filling) {
			t.Errorf("%s: %v, want %v and %v", what, got, current, filling)
		}
	}
	restored := func(e metadata.Epoch, ok bool) {
		t.Helper()
		next, done := m.WithRestored(e)
		if m = next; done != ok {
			t.Errorf("restored by epoch %d of %d: %v", e, m.Epoch, done)
		}
	}
	ids := func(ids ...metadata.NodeID) []metadata.NodeID { return ids }
	restored(m.Epoch, false)
	want("all are there", ids(1, 2), nil)
	m = m.WithState(1, Down, "")
	want("one is lost", ids(2), ids(3))
	m = m.WithState(3, Down, "")
	want("and the one that was to get it", ids(2), ids(0))
	restored(m.Epoch-1, false)
	restored(m.Epoch, true)
	restored(m.Epoch, false)
	want("restored", ids(2, 0), nil)
	m = m.WithState(1, Up, "")
	want("the first is back", ids(2, 0), nil)
	m = m.WithState(2, Down, "")
	want("the second is lost", ids(0), ids(1))
	m = m.WithState(0, Down, "")
	want("all are", nil, nil)
	restored(m.Epoch, true)
	m = m.WithState(0, Up, "")
	want("nothing was made from a lost one", ids(0), ids(1))
	if !m.Unrestored() {
		t.Error("a copy that is to be made is not waited for")
	}
	restored(m.Epoch, true)
	want("restored again", ids(0, 1), nil)
	if got := slices.Sorted(slices.Values(m.Holders(p))); !slices.Equal(got, ids(0, 1, 2, 3)) {
		t.Errorf("old copies may be on %v", got)
	}

	m = upMap(4, 5)
	p = Part{Ino: metadata.LiveIno(3, 1024), Local: true, Since: m.Epoch, Copies: []metadata.NodeID{1, 2}}
	m = m.WithState(1, Down, "").WithState(3, Down, "")
	want("a copy and the home are lost", ids(2), ids(0))
	restored(m.Epoch, true)
	want("restored without it", ids(2), ids(0))
	if m.Unrestored() {
		t.Error("the files of a lost home are waited for")
	}
	m = m.WithState(3, Up, "")
	want("it is back", ids(2), ids(0))
	restored(m.Epoch, true)
	want("restored with it", ids(2, 0), nil)

	a := metadata.Attr{Ino: 1024, Layout: metadata.Layout{Copies: 2, Epoch: 4}}
	parts := Parts(a.Ino, a.Layout, ids(0, 1, 2, 3))
	if got := parts[0].Object(2); parts[0].Object(0) != a.Object() || got == parts[1].Object(2) || got == parts[1].Object(0) || got.File() != a.Ino || !got.Copied() {
		t.Errorf("objects of the parts: %v %v", got, parts[1].Object(0))
	}
	if k, ok := parts[1].Object(2).MovedPart(); !ok || k != 1 {
		t.Errorf("part %d, %v", k, ok)
	}
}

// TestLostHomesChangeWithNodes: all maps with the same Changed epoch agree on which homes are lost, so a node that
// leaves their files out does so by the map that says it (Restoration).
func TestLostHomesChangeWithNodes(t *testing.T) {
	lost := func(m Map) []metadata.NodeID {
		return m.filter(func(n Node) bool { return len(n.Terms) > 0 && !m.HomeServes(n.ID) })
	}
	all := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		m := upMap(5, 5)
		for range 60 {
			was := m
			id := metadata.NodeID(r.IntN(5))
			n, _ := m.Node(id)
			switch p, ok := m.NextPartner(id); r.IntN(4) {
			case 0:
				m = m.WithState(id, []State{Up, Leaving, Down}[r.IntN(3)], "")
			case 1:
				if ok {
					m, _ = m.WithPartner(id, n.Seat().Since, p)
				}
			case 2:
				p = n.Second()
				p.StandsIn = true
				m, _ = m.WithPartner(id, n.Seat().Since, p)
			default:
				m, _ = m.WithRestored(m.Changed())
			}
			if all += len(lost(m)); m.Changed() == was.Changed() && !slices.Equal(lost(m), lost(was)) {
				t.Fatalf("seed %d: lost are %v, and then %v", seed, lost(was), lost(m))
			}
		}
	}
	if all == 0 {
		t.Error("no home was lost")
	}
}
