package cluster

import (
	"cmp"
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// switched reports whether the leaf switch of any node is known.
func (m Map) switched() bool {
	for i := range m.Nodes {
		if m.Nodes[i].Switch != "" {
			return true
		}
	}
	return false
}

// neighbour returns the node that gets the second copy of the data of the node id: a node for which want is true,
// except id and the nodes in except. It is behind another leaf switch if possible, else the next node by number.
func (m Map) neighbour(id metadata.NodeID, want func(*Node) bool, except ...metadata.NodeID) (metadata.NodeID, bool) {
	if int(id) >= len(m.Nodes) {
		return 0, false
	}
	can := func(n *Node) bool { return n.ID != id && !slices.Contains(except, n.ID) && want(n) }
	choices := []func(*Node) bool{can}
	if m.switched() {
		apart := func(n *Node) bool { return n.Switch != m.Nodes[id].Switch && can(n) }
		choices = []func(*Node) bool{apart, can}
		near, far := m.opposite(id, want)
		for _, n := range []*Node{near, far} {
			if apart(n) {
				return n.ID, true
			}
		}
		if can(near) {
			return near.ID, true
		}
	}
	for _, fits := range choices {
		for i := range m.Nodes {
			if n := &m.Nodes[(int(id)+1+i)%len(m.Nodes)]; fits(n) {
				return n.ID, true
			}
		}
	}
	return 0, false
}

// opposite distributes second copies evenly. The nodes form a ring by leaf switch and number. near is as many nodes
// after id as the largest switch has, so it is behind another switch, and no two nodes have the same near. If more than
// half of the nodes are behind one switch, far is behind another one for some of the nodes whose near is not.
func (m Map) opposite(id metadata.NodeID, want func(*Node) bool) (near, far *Node) {
	ring := make([]*Node, 0, len(m.Nodes))
	for i := range m.Nodes {
		if n := &m.Nodes[i]; n.ID == id || want(n) {
			ring = append(ring, n)
		}
	}
	slices.SortFunc(ring, func(a, b *Node) int { return cmp.Or(cmp.Compare(a.Switch, b.Switch), cmp.Compare(a.ID, b.ID)) })
	at, run, step := 0, 0, 0
	for i, n := range ring {
		if run++; i > 0 && n.Switch != ring[i-1].Switch {
			run = 1
		}
		step = max(step, run)
		if n.ID == id {
			at = i
		}
	}
	if step == len(ring) {
		step = 1
	}
	return ring[(at+step)%len(ring)], ring[(at+2*step)%len(ring)]
}

// apart returns the heaviest places for two copies of each of the given number of parts, first copies in the first half
// and second copies in the second: behind different leaf switches where possible. places is sorted by weight.
func (m Map) apart(places []place, parts int) []place {
	leaf := func(p place) string { return m.Nodes[p.id].Switch }
	var chosen, others []place
	behind := make(map[string]int)
	for _, p := range places {
		if len(chosen) == 2*parts {
			break
		}
		if behind[leaf(p)]++; behind[leaf(p)] <= parts {
			chosen = append(chosen, p)
		} else {
			others = append(others, p)
		}
	}
	chosen = append(chosen, others...)[:2*parts]
	slices.SortStableFunc(chosen, func(a, b place) int { return cmp.Compare(leaf(a), leaf(b)) })
	pairs := make([][2]place, parts)
	for k := range pairs {
		pairs[k] = [2]place{chosen[k], chosen[k+parts]}
		slices.SortFunc(pairs[k][:], heavier)
	}
	slices.SortFunc(pairs, func(a, b [2]place) int { return heavier(a[0], b[0]) })
	for k, p := range pairs {
		chosen[k], chosen[k+parts] = p[0], p[1]
	}
	return chosen
}
