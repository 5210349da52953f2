package cluster

import (
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestOrderOfCopies: the second copy of each part is on another node than the first, whatever the width; a
// node's local files have one partner.
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
		want  []metadata.NodeID // of the copies on 1 and 2
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
		was := []metadata.NodeID{1, 2}
		for _, s := range c.steps {
			m = m.WithState(s.id, s.s, "")
			now := m.lastLeft([]metadata.NodeID{1, 2}, since)
			for _, id := range now {
				if !slices.Contains(was, id) {
					t.Errorf("%s: copy %d counts again", c.name, id)
				}
			}
			was = now
		}
		if got := m.Current(nil, []metadata.NodeID{1, 2}, since); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	both := upMap(4, 5)
	since := both.Epoch
	both = both.With([]Change{{1, Down, ""}, {2, Down, ""}}).WithState(2, Up, "").WithState(1, Up, "")
	if got := both.Current(nil, []metadata.NodeID{1, 2}, since); !slices.Equal(got, []metadata.NodeID{2}) {
		t.Errorf("lost in one epoch: %v, want the first that returned", got)
	}
}
