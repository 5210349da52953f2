package cluster

import (
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// Term is a range of epochs in which a node was Up.
type Term struct {
	From metadata.Epoch `json:"from"`
	To   metadata.Epoch `json:"to,omitempty"` // the first epoch after the range; 0 while it lasts
	// Left is the first epoch in which the node no longer served, after it was Leaving from To on; 0 while it is
	// Leaving, or if it never was.
	Left metadata.Epoch `json:"left,omitempty"`
}

func (t Term) has(e metadata.Epoch) bool { return t.From <= e && (t.To == 0 || e < t.To) }

// Node is one node of the job.
type Node struct {
	ID    metadata.NodeID `json:"id"`
	Host  string          `json:"host"`
	State State           `json:"state"`
	Addr  string          `json:"addr,omitempty"`  // host:port where its daemon answers; "" while Joining
	Since metadata.Epoch  `json:"since"`           // first epoch of State
	Terms []Term          `json:"terms,omitempty"` // ranges of epochs in which it was Up, oldest first
	// Switch is the leaf switch of the node, recorded when the node was first Up; "" is unknown. It never changes
	// afterwards, because the places of second copies depend on it.
	Switch string `json:"switch,omitempty"`
	// Partner is the node with a copy of the records whose home is this node.
	Partner Partner `json:"partner,omitzero"`
	// Heir is the node with a copy of the records that Partner has, once Partner stands in for the node.
	Heir Partner `json:"heir,omitzero"`
}

// leaves reports whether n is Leaving, and was Up before.
func (n *Node) leaves() bool {
	return n.State == Leaving && len(n.Terms) > 0 && n.Terms[len(n.Terms)-1].To == n.Since
}

// Serves reports whether n takes part in the job's work: it is Up or Leaving.
func (n Node) Serves() bool { return n.State == Up || n.State == Leaving }

func (n *Node) upAt(e metadata.Epoch) bool {
	return slices.ContainsFunc(n.Terms, func(t Term) bool { return t.has(e) })
}

// Map is the job's cluster map. Maps are immutable: With… methods return a copy with the next epoch.
type Map struct {
	Epoch metadata.Epoch `json:"epoch"`
	Seed  uint64         `json:"seed"`  // for all placement; from the job's seed option or its id
	Nodes []Node         `json:"nodes"` // by ID
	// Restored lists the epochs in which all files with copies had their full number of copies, on the nodes that
	// replaced lost ones (CopiesOf), oldest first.
	Restored []Restoration `json:"restored,omitempty"`
}

// NewMap returns the first map: epoch 0, every host Joining, numbered in the order of the list.
func NewMap(seed uint64, hosts []string) Map {
	m := Map{Seed: seed, Nodes: make([]Node, len(hosts))}
	for i, h := range hosts {
		m.Nodes[i] = Node{ID: metadata.NodeID(i), Host: h, State: Joining}
	}
	return m
}

// Change is a new state and address for a node.
type Change struct {
	ID    metadata.NodeID `json:"id"`
	State State           `json:"state"`
	Addr  string          `json:"addr,omitempty"`
	// Switch counts only if the node becomes Up for the first time.
	Switch string `json:"switch,omitempty"`
}

// WithState returns the map of the next epoch, in which the node id has the state s and the address addr. It does not
// change m; for an unknown id it returns m.
func (m Map) WithState(id metadata.NodeID, s State, addr string) Map {
	return m.With([]Change{{ID: id, State: s, Addr: addr}})
}

// With returns the map of the next epoch, with all changes applied. It does not change m. If no change concerns a known
// node, it returns m.
func (m Map) With(changes []Change) Map {
	next := m
	next.Epoch++
	next.Nodes = slices.Clone(m.Nodes)
	changed := false
	for _, c := range changes {
		if int(c.ID) < len(next.Nodes) {
			next.Nodes[c.ID].become(c, next.Epoch)
			changed = true
		}
	}
	if !changed {
		return m
	}
	next.followPartners()
	return next
}

func (n *Node) become(c Change, epoch metadata.Epoch) {
	n.Addr = c.Addr
	if n.State == c.State {
		return
	}
	n.Terms = slices.Clone(n.Terms)
	if n.State == Up {
		n.Terms[len(n.Terms)-1].To = epoch
	}
	if n.leaves() {
		n.Terms[len(n.Terms)-1].Left = epoch
	}
	if c.State == Up {
		if len(n.Terms) == 0 {
			n.Switch = c.Switch
		}
		n.Terms = append(n.Terms, Term{From: epoch})
	}
	n.State, n.Since = c.State, epoch
}

// Node returns the node with that id.
func (m Map) Node(id metadata.NodeID) (Node, bool) {
	if int(id) >= len(m.Nodes) {
		return Node{}, false
	}
	return m.Nodes[id], true
}

// Up returns the nodes that are Up, by id.
func (m Map) Up() []metadata.NodeID {
	return m.filter(func(n Node) bool { return n.State == Up })
}

// UpAt returns the nodes that were Up in the epoch e, by id: all nodes for epoch 0; the current Up nodes for an epoch
// later than that of the map.
func (m Map) UpAt(e metadata.Epoch) []metadata.NodeID {
	return m.filter(func(n Node) bool { return e == 0 || n.upAt(e) })
}

func (m Map) filter(want func(Node) bool) []metadata.NodeID {
	ids := make([]metadata.NodeID, 0, len(m.Nodes))
	for _, n := range m.Nodes {
		if want(n) {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// Throughout reports whether the node id is Up, and was Up in every epoch from since on. Epoch 0, before any map,
// requires nothing.
func (m Map) Throughout(id metadata.NodeID, since metadata.Epoch) bool {
	n, ok := m.Node(id)
	if !ok || n.State != Up || len(n.Terms) == 0 {
		return false
	}
	last := n.Terms[len(n.Terms)-1]
	return last.To == 0 && (since == 0 || last.From <= since)
}
