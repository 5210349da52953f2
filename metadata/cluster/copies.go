package cluster

import (
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// pair returns the node id and its partner, which has the second copy of its files: the next node by
// id that was Up in the epoch e, from the last one on to the first. It is id alone if there is none.
// All of a node's files have the same partner, so the loss of two nodes destroys few files.
func (m Map) pair(id metadata.NodeID, e metadata.Epoch) []metadata.NodeID {
	for i := range m.Nodes {
		n := m.Nodes[(int(id)+1+i)%len(m.Nodes)]
		if n.ID != id && (e == 0 || n.upAt(e)) {
			return []metadata.NodeID{id, n.ID}
		}
	}
	return []metadata.NodeID{id}
}

// Current appends to buf those of copies that serve and have every acknowledged byte of a file that was
// laid out in the epoch since. A copy is excluded for ever by the first epoch in which its node is not Up
// while another one's is: writes go on without it. If none serves, those that were last to go are awaited.
// So a later map never has more of them than an earlier one.
func (m Map) Current(buf, copies []metadata.NodeID, since metadata.Epoch) []metadata.NodeID {
	left := copies
	if !m.allThroughout(copies, since) {
		left = m.lastLeft(copies, since)
	}
	for _, id := range left {
		if n, ok := m.Node(id); ok && n.State != Down {
			buf = append(buf, id)
		}
	}
	return buf
}

// allThroughout is the usual case: no node of ids has ever left since the epoch.
func (m Map) allThroughout(ids []metadata.NodeID, since metadata.Epoch) bool {
	for _, id := range ids {
		if !m.Throughout(id, since) {
			return false
		}
	}
	return true
}

// lastLeft returns the copies that no epoch after since has excluded.
func (m Map) lastLeft(copies []metadata.NodeID, since metadata.Epoch) []metadata.NodeID {
	var changes []metadata.Epoch
	for _, id := range copies {
		n, _ := m.Node(id)
		for _, t := range n.Terms {
			changes = append(changes, t.From, t.To, t.Left)
		}
	}
	slices.Sort(changes)
	left := slices.Clone(copies)
	for _, e := range changes {
		absent := func(id metadata.NodeID) bool { n, _ := m.Node(id); return !n.servedAt(e) }
		if e > since && slices.ContainsFunc(left, func(id metadata.NodeID) bool { return !absent(id) }) {
			left = slices.DeleteFunc(left, absent)
		}
	}
	return left
}

// servedAt reports whether n was Up in the epoch e, or Leaving right after it.
func (n *Node) servedAt(e metadata.Epoch) bool {
	for i, t := range n.Terms {
		left := t.To > 0 && t.To <= e && (e < t.Left || i == len(n.Terms)-1 && n.leaves())
		if t.has(e) || left {
			return true
		}
	}
	return false
}

// CurrentOf returns the nodes of order, that of a file with copies (Order), whose copies count, and how many
// the part has that has the fewest.
func (m Map) CurrentOf(order []metadata.NodeID, since metadata.Epoch) (nodes []metadata.NodeID, least int) {
	half := (len(order) + 1) / 2
	least = len(order)
	for k := range half {
		part := []metadata.NodeID{order[k]}
		if k+half < len(order) {
			part = append(part, order[k+half])
		}
		now := m.Current(nil, part, since)
		nodes, least = append(nodes, now...), min(least, len(now))
	}
	return nodes, least
}
