package cluster

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// switched returns a map of nodes that are Up behind these switches.
func switched(switches string) Map {
	m := NewMap(5, make([]string, len(switches)))
	for i, s := range switches {
		leaf := string(s)
		if leaf == "-" {
			leaf = ""
		}
		m = m.With([]Change{{ID: metadata.NodeID(i), State: Up, Switch: leaf}})
	}
	return m
}

// sizes returns how many nodes are behind each switch of m.
func sizes(m Map) []int {
	size := make(map[string]int)
	for _, x := range m.Nodes {
		size[x.Switch]++
	}
	return slices.Collect(maps.Values(size))
}

func most(m Map) int { return slices.Max(sizes(m)) }

var topologies = []string{"--", "----", "-----", "aabb", "abab", "aaab", "aaabb", "ab", "aabbcc", "cabbca", "aaaaaabc", "aa--", "abcdef", "aaaabbbb", "bbbbbaaaaaccccc"}

// TestNeighbours: each node has the second copy of one other node, as often as possible behind a different switch;
// without topology it is the next node by number.
func TestNeighbours(t *testing.T) {
	for _, topology := range topologies {
		m := switched(topology)
		n, load, apart := len(m.Nodes), make(map[metadata.NodeID]int), 0
		for _, x := range m.Nodes {
			p, ok := m.NextPartner(x.ID)
			if load[p.Node]++; !ok || p.Node == x.ID {
				t.Fatalf("%s: partner of node %d: %v, %v", topology, x.ID, p, ok)
			}
			if m.Nodes[p.Node].Switch != x.Switch {
				apart++
			}
			l := metadata.Layout{Kind: metadata.Local, Node: x.ID, Copies: 2, Epoch: m.Epoch}
			if got := m.Order(1024, l); !slices.Equal(got, []metadata.NodeID{x.ID, p.Node}) {
				t.Errorf("%s: local files of node %d are on %v, its names on %d", topology, x.ID, got, p.Node)
			}
			if next := metadata.NodeID((int(x.ID) + 1) % n); most(m) == n && p.Node != next {
				t.Errorf("%s: partner of node %d is %d, want the next one", topology, x.ID, p.Node)
			}
			if share := 1 + min(1, max(0, 2*most(m)-n)); load[p.Node] > share || most(m) == n && load[p.Node] > 1 {
				t.Errorf("%s: node %d is the partner of %d", topology, p.Node, load[p.Node])
			}
		}
		if want := n - most(m) + min(most(m), 2*(n-most(m))); apart != want {
			t.Errorf("%s: %d nodes have partners behind another switch, want %d", topology, apart, want)
		}
	}
}

// TestSpareApart: after the loss of a node, the new copies of its files, and of files whose second copy it had, are
// behind another switch than the remaining copies, if there is one; after the loss of a switch they are distributed.
func TestSpareApart(t *testing.T) {
	for _, topology := range topologies {
		was := switched(topology)
		for lost := range was.Nodes {
			m := was.WithState(metadata.NodeID(lost), Down, "")
			for _, x := range was.Nodes {
				for _, l := range []metadata.Layout{{Kind: metadata.Local, Node: x.ID, Copies: 2}, {Copies: 2, Width: 1}} {
					l.Epoch = was.Epoch
					for ino := metadata.Ino(1024); ino < 1034; ino++ {
						p := Parts(ino, l, was.Order(ino, l))[0]
						c := m.CopiesOf(p)
						if len(c.Filling) == 0 {
							continue
						}
						left, made := m.Nodes[c.Current[0].Node], m.Nodes[c.Filling[0].Node]
						others := slices.ContainsFunc(m.Nodes, func(n Node) bool { return n.State == Up && n.Switch != left.Switch })
						if left.ID == made.ID || others && most(was) <= len(m.Nodes)/2 && left.Switch == made.Switch {
							t.Errorf("%s without node %d: copies of %v on %d and %d", topology, lost, p, left.ID, made.ID)
						}
					}
				}
			}
		}
	}
	m := switched("aaaabbbbcccc")
	since := m.Epoch
	m = m.With([]Change{{ID: 4, State: Down}, {ID: 5, State: Down}, {ID: 6, State: Down}, {ID: 7, State: Down}})
	load := make(map[metadata.NodeID]int)
	for id := range metadata.NodeID(4) {
		p := Part{Ino: 1024, Local: true, Since: since, Copies: []metadata.NodeID{id, id + 4}}
		load[m.CopiesOf(p).Filling[0].Node]++
	}
	if len(load) != 4 || load[8] != 1 {
		t.Errorf("the nodes of a switch have the new copies %v, want each one of the other switch", load)
	}
}

// TestOrderApart: the two copies of each part of a striped file are behind different switches where possible, and the
// parts are distributed evenly; without topology they are on the nodes with the greatest weights.
func TestOrderApart(t *testing.T) {
	for _, topology := range topologies {
		m := switched(topology)
		n := len(m.Nodes)
		for _, width := range []uint16{1, 2, metadata.AllNodes} {
			l, load, all, files := metadata.Layout{Copies: 2, Width: width, Epoch: m.Epoch}, make([]int, n), 0, 2000
			for i := range files {
				ino := metadata.Ino(1024 + i)
				order := m.Order(ino, l)
				if got := slices.Compact(slices.Sorted(slices.Values(order))); len(got) != len(order) {
					t.Fatalf("%s: Order = %v", topology, order)
				}
				for _, p := range Parts(ino, l, order) {
					possible := n-most(m) >= len(order)/2
					if possible && m.Nodes[p.Copies[0]].Switch == m.Nodes[p.Copies[1]].Switch {
						t.Errorf("%s, width %d: %v has both copies behind one switch", topology, width, p)
					}
				}
				for _, id := range order {
					load[id]++
					all++
				}
				single := l
				single.Copies, single.Width = 0, uint16(len(order))
				if plain := m.Order(ino, single); most(m) == n && !slices.Equal(order, plain) || order[0] != plain[0] {
					t.Fatalf("%s: Order = %v, want %v", topology, order, plain)
				}
			}
			if share := all / n; slices.Min(sizes(m)) == most(m) && (slices.Max(load) > share*5/4 || slices.Min(load) < share*3/4) {
				t.Errorf("%s, width %d: the nodes have %v parts, want about %d", topology, width, load, share)
			}
		}
	}
}

// TestSwitchStays: the switch of a node is that of its first start, so that no placement changes later, and it is part
// of the deltas of views.
func TestSwitchStays(t *testing.T) {
	m := switched("aab-")
	l := metadata.Layout{Copies: 2, Epoch: m.Epoch}
	local := metadata.Layout{Kind: metadata.Local, Copies: 2, Epoch: m.Epoch}
	places := func(m Map) string { return fmt.Sprint(m.Order(1024, l), m.Order(1024, local)) }
	want := places(m)
	later := m
	for id := range metadata.NodeID(4) {
		later = later.WithState(id, Down, "")
		later = later.With([]Change{{ID: id, State: Up, Switch: "z"}})
	}
	if got := places(later); got != want {
		t.Errorf("places %s, and after all nodes have restarted elsewhere %s", want, got)
	}
	v := View{Version: 2, Map: later}
	first := View{Map: NewMap(5, make([]string, 4))}
	d := v.Since(first, nil)
	got, ok := d.Apply(first, nil)
	if !ok || places(got.Map) != want || got.Map.Nodes[2].Switch != "b" {
		t.Errorf("a difference loses the switch: %+v", got.Map.Nodes)
	}
	if d := (View{Version: 3, Map: later}).Since(v, nil); len(d.Nodes) > 0 {
		t.Errorf("a view without changes of nodes has %v", d.Nodes)
	}
}
