package cluster

import "github.com/bivouacfs/bivouac/metadata"

// Partner is the node with a copy of another one's records (package mirror).
type Partner struct {
	Node metadata.NodeID `json:"node"`
	// Since is an epoch from which on the partner has served, and before which its copy was not begun; 0 is no partner.
	Since metadata.Epoch `json:"since,omitempty"`
	// StandsIn: the node was given up, and its partner has its place as a home for good.
	StandsIn bool `json:"stands_in,omitempty"`
}

// WithPartner returns the map of the next epoch, in which p has a copy of the records of the node id. It is
// false if that may no longer be true: p has not served throughout, or id does not serve. If p.StandsIn, the node
// has lost its records, and its partner p stands in for it; it is false for another p.
func (m Map) WithPartner(id metadata.NodeID, p Partner) (Map, bool) {
	n, ok := m.Node(id)
	if !ok || id == p.Node || p.Since == 0 || n.Partner.StandsIn || !m.ServesSince(p.Node, p.Since) {
		return m, false
	}
	if p.StandsIn && (n.Partner.Node != p.Node || n.Partner.Since != p.Since) || !p.StandsIn && !n.Serves() {
		return m, false
	}
	next := m
	next.Epoch++
	next.Nodes = append([]Node(nil), m.Nodes...)
	next.Nodes[id].Partner = p
	return next, true
}

// ServesSince reports whether the node id serves, and did in every epoch from since on.
func (m Map) ServesSince(id metadata.NodeID, since metadata.Epoch) bool {
	n, ok := m.Node(id)
	if !ok || len(n.Terms) == 0 || n.State != Up && !n.leaves() {
		return false
	}
	return n.Terms[len(n.Terms)-1].From <= since
}

// NextPartner returns a node that can become the partner of id: the next one by id that is Up, from the last
// one on to the first.
func (m Map) NextPartner(id metadata.NodeID) (Partner, bool) {
	for i := range m.Nodes {
		n := m.Nodes[(int(id)+1+i)%len(m.Nodes)]
		if n.ID != id && n.State == Up {
			return Partner{Node: n.ID, Since: m.Epoch}, true
		}
	}
	return Partner{}, false
}

// HomeAt returns the node that has the records whose home is the node id: id itself, or its partner in its
// place. It is false while that node is Down. Ask it, or HomeServes, for whatever concerns a home; the state of the
// node id says whether its data, its client and its page cache can be reached.
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

// followPartners takes the changes of nodes into account: the copy of a partner that does not serve is not
// kept; the partner of a node that is given up stands in for it.
func (m Map) followPartners() {
	for i := range m.Nodes {
		n := &m.Nodes[i]
		switch p := &n.Partner; {
		case p.Since == 0 || p.StandsIn:
		case !m.ServesSince(p.Node, p.Since):
			*p = Partner{}
		case n.State == Down:
			p.StandsIn = true
		}
	}
}

// The values of Names.State.
const (
	NamesSingle  = "one copy" // no other node can have one
	NamesCopying = "copying"
	NamesCopied  = "copied"
	NamesServed  = "served" // by the partner: the home was lost
	NamesLost    = "lost"   // until Node, or the home's own node, is back
)

// Names says, for users, how many copies the names of a home have, and where.
type Names struct {
	State string `json:"state"`
	Node  string `json:"node,omitempty"` // the host with the other copy, or the only one
}

// Names returns where the names of the home id are. It is for views that are Copied.
func (m Map) Names(id metadata.NodeID) Names {
	n, _ := m.Node(id)
	host := ""
	if p, ok := m.Node(n.Partner.Node); ok && n.Partner.Since > 0 {
		host = p.Host
	}
	switch _, ok := m.HomeAt(id); {
	case !ok:
		return Names{NamesLost, host}
	case n.Partner.StandsIn:
		return Names{NamesServed, host}
	case host != "":
		return Names{NamesCopied, host}
	}
	if p, ok := m.NextPartner(id); ok && n.State == Up {
		next, _ := m.Node(p.Node)
		return Names{NamesCopying, next.Host}
	}
	return Names{State: NamesSingle}
}
