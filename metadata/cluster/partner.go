package cluster

import "github.com/bivouacfs/bivouac/metadata"

// Partner is the node with a copy of another node's records (package mirror).
type Partner struct {
	Node metadata.NodeID `json:"node"`
	// Since is an epoch from which on the partner has served, and before which its copy was not begun; 0 is no partner.
	Since metadata.Epoch `json:"since,omitempty"`
	// StandsIn: the node was given up, and its partner serves as the home in its place, until the partner is lost, too.
	StandsIn bool `json:"stands_in,omitempty"`
}

// Seat returns the node that stands in for n as a home, or the zero Partner if n has its records itself. Each later
// seat has a greater Since.
func (n Node) Seat() Partner {
	if n.Partner.StandsIn {
		return n.Partner
	}
	return Partner{}
}

// Second returns the node with the second copy of the records whose home is n, or the zero Partner if there is none.
func (n Node) Second() Partner {
	if n.Partner.StandsIn {
		return n.Heir
	}
	return n.Partner
}

// WithPartner returns the map of the next epoch, in which p has a copy of the records whose home is the node id, as
// proposed by the node with the seat (Node.Seat, given by its Since; 0 is id itself). It returns false if that is
// outdated: another node has the seat, or does not serve, or p has not served throughout. If p.StandsIn, the node with
// the seat has lost the records, and p gets the seat; it returns false unless p is the recorded partner.
func (m Map) WithPartner(id metadata.NodeID, seat metadata.Epoch, p Partner) (Map, bool) {
	n, ok := m.Node(id)
	if !ok || id == p.Node || p.Since <= seat || n.Seat().Since != seat || !m.ServesSince(p.Node, p.Since) {
		return m, false
	}
	at, _ := m.HomeAt(id)
	has := n.Second()
	if at == p.Node || p.StandsIn && (has.Node != p.Node || has.Since != p.Since) || !p.StandsIn && !m.HomeServes(id) {
		return m, false
	}
	next := m
	next.Epoch++
	next.Nodes = append([]Node(nil), m.Nodes...)
	switch x := &next.Nodes[id]; {
	case p.StandsIn:
		x.Partner, x.Heir = p, Partner{}
	case seat > 0:
		x.Heir = p
	default:
		x.Partner = p
	}
	return next, true
}

// ServesSince reports whether the node id serves, and has served in every epoch from since on.
func (m Map) ServesSince(id metadata.NodeID, since metadata.Epoch) bool {
	n, ok := m.Node(id)
	if !ok || len(n.Terms) == 0 || n.State != Up && !n.leaves() {
		return false
	}
	return n.Terms[len(n.Terms)-1].From <= since
}

// NextPartner returns a node that can get the second copy of the records of the home id: among the Up nodes, the
// neighbour of the node that has the records. It returns neither a replaced home for its own records nor a node in
// full.
func (m Map) NextPartner(id metadata.NodeID, full ...metadata.NodeID) (Partner, bool) {
	at, _ := m.HomeAt(id)
	n, ok := m.neighbour(at, func(n *Node) bool { return n.State == Up }, append(full, id)...)
	return Partner{Node: n, Since: m.Epoch}, ok
}

// HomeAt returns the node that has the records whose home is the node id: id itself, or its stand-in. It returns false
// while that node is Down. Use it or HomeServes for all questions about a home; the state of id only shows whether its
// data, client and page cache can be reached.
func (m Map) HomeAt(id metadata.NodeID) (metadata.NodeID, bool) {
	n, ok := m.Node(id)
	if ok && n.Partner.StandsIn {
		id = n.Partner.Node
		n, ok = m.Node(id)
	}
	return id, ok && n.State != Down
}

// HomeServes reports whether the node that has the records of the home id takes part in the job's work.
func (m Map) HomeServes(id metadata.NodeID) bool {
	at, _ := m.HomeAt(id)
	n, ok := m.Node(at)
	return ok && n.Serves()
}

// followPartners applies the changes of nodes to the partners: it drops a second copy whose node does not serve, and
// makes the node with the second copy stand in for a node that was given up.
func (m Map) followPartners() {
	for i := range m.Nodes {
		n := &m.Nodes[i]
		at, second := &n.ID, &n.Partner
		if n.Partner.StandsIn {
			at, second = &n.Partner.Node, &n.Heir
		}
		switch {
		case second.Since == 0:
		case !m.ServesSince(second.Node, second.Since):
			*second = Partner{}
		case m.Nodes[*at].State == Down:
			n.Partner, n.Heir = Partner{second.Node, second.Since, true}, Partner{}
		}
	}
}

// The values of Names.State.
const (
	NamesSingle  = "one copy" // no other node can have a copy
	NamesCopying = "copying"
	NamesCopied  = "copied"
	NamesServed  = "served" // by another node: the home was lost
	NamesLost    = "lost"   // until Node, or the home's own node, returns
)

// Names describes to users how many copies the names of a home have, and where.
type Names struct {
	State string `json:"state"`
	Node  string `json:"node,omitempty"` // host with the other copy, or with the only one, or the host that serves them
	// Copy is the host with the other copy of names that another node serves, Copying the host that is getting it.
	// Without either, the names have one copy.
	Copy    string `json:"copy,omitempty"`
	Copying string `json:"copying,omitempty"`
}

// Whole reports whether the names have two copies.
func (n Names) Whole() bool { return n.State == NamesCopied || n.Copy != "" }

// Names returns the locations of the names of the home id. It is meant for views that are Copied.
func (m Map) Names(id metadata.NodeID) Names {
	n, _ := m.Node(id)
	host := func(p Partner, ok bool) string {
		x, _ := m.Node(p.Node)
		if !ok || p.Since == 0 {
			return ""
		}
		return x.Host
	}
	at, ok := m.HomeAt(id)
	copied, next := host(n.Second(), true), ""
	if x, _ := m.Node(at); x.State == Up && copied == "" {
		next = host(m.NextPartner(id))
	}
	switch {
	case !ok:
		return Names{State: NamesLost, Node: host(n.Partner, true)}
	case n.Partner.StandsIn:
		return Names{NamesServed, host(n.Partner, true), copied, next}
	case copied != "":
		return Names{State: NamesCopied, Node: copied}
	case next != "":
		return Names{State: NamesCopying, Node: next}
	}
	return Names{State: NamesSingle}
}
