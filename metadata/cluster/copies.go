package cluster

import (
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// pair returns the node id and its partner, which has the second copy of its files: the neighbour of id among the nodes
// that were Up in the epoch e. It returns id alone if there is none. All files of a node have the same partner, so the
// loss of two nodes destroys few files.
func (m Map) pair(id metadata.NodeID, e metadata.Epoch) []metadata.NodeID {
	n, ok := m.neighbour(id, func(n *Node) bool { return e == 0 || n.upAt(e) })
	if !ok {
		return []metadata.NodeID{id}
	}
	return []metadata.NodeID{id, n}
}

// Part is the part of a file with copies that lies on one node of its stripe.
type Part struct {
	Ino    metadata.Ino
	Local  bool              // Layout.Kind
	Since  metadata.Epoch    // Layout.Epoch
	Index  int               // position in the stripe
	Copies []metadata.NodeID // nodes of the original layout (Order)
}

// Parts returns the parts of a file whose stripe is order (Order).
func Parts(ino metadata.Ino, l metadata.Layout, order []metadata.NodeID) []Part {
	half := (len(order) + 1) / 2
	parts := make([]Part, half)
	for k := range parts {
		p := Part{Ino: ino, Local: l.Kind == metadata.Local, Since: l.Epoch, Index: k, Copies: []metadata.NodeID{order[k]}}
		if k+half < len(order) {
			p.Copies = append(p.Copies, order[k+half])
		}
		parts[k] = p
	}
	return parts
}

// Object returns the number under which the node id stores, or would store, p.
func (p Part) Object(id metadata.NodeID) metadata.Ino {
	a := metadata.Attr{Ino: p.Ino, Layout: metadata.Layout{Copies: metadata.MaxCopies}}
	if slices.Contains(p.Copies, id) {
		return a.Object()
	}
	return a.Object().Moved(p.Index)
}

// Copy is a node with a copy of a part.
type Copy struct {
	Node metadata.NodeID
	From metadata.Epoch // epoch from which it replaces a lost copy; 0 for the nodes in Part.Copies
}

// Restoration is an epoch from which on the copies made in place of lost ones count.
type Restoration struct {
	Epoch metadata.Epoch `json:"epoch"`
	// Without lists the homes that were lost then: copies of their files are still being made.
	Without []metadata.NodeID `json:"without,omitempty"`
}

// Copies lists the nodes with copies of a part.
type Copies struct {
	// Current lists the copies that serve. They have every acknowledged byte, or at least the first of them does.
	Current []Copy
	// Filling is the copy, if any, that is being made in place of a lost one. It gets every write, is not read, and
	// counts from the next epoch of Map.Restored on.
	Filling []Copy
}

// CopiesOf returns the copies of p. A copy is excluded by the first epoch in which its node is not Up while the node of
// another copy is: writes continue without it. If no copy serves, the last ones to fail are awaited. Another node gets
// a copy in place of an excluded one (spare); it may be the lost node itself, after its return.
func (m Map) CopiesOf(p Part) Copies {
	var c Copies
	if m.allThroughout(p.Copies, p.Since) {
		for _, id := range p.Copies {
			c.Current = append(c.Current, Copy{Node: id})
		}
		return c
	}
	c, _ = m.replay(p)
	c.Current = slices.DeleteFunc(c.Current, func(x Copy) bool { n, ok := m.Node(x.Node); return !ok || n.State == Down })
	if len(c.Current) == 0 {
		c.Filling = nil // there is no copy to fill it from
	}
	return c
}

// CurrentOf returns the nodes of the current copies of p, without the one being made.
func (m Map) CurrentOf(p Part) (ids []metadata.NodeID) {
	for _, c := range m.CopiesOf(p).Current {
		ids = append(ids, c.Node)
	}
	return ids
}

// allThroughout reports the usual case: no node of ids has left since the epoch.
func (m Map) allThroughout(ids []metadata.NodeID, since metadata.Epoch) bool {
	return !slices.ContainsFunc(ids, func(id metadata.NodeID) bool { return !m.Throughout(id, since) })
}

// Holders returns the nodes that may have p, or an old copy of it.
func (m Map) Holders(p Part) []metadata.NodeID {
	if m.allThroughout(p.Copies, p.Since) {
		return p.Copies
	}
	_, ids := m.replay(p)
	return ids
}

// replay follows the copies of p through all epochs in which a node joined or left, or copies were restored. ever lists
// all nodes that had a copy, or were to get one.
func (m Map) replay(p Part) (c Copies, ever []metadata.NodeID) {
	ever = slices.Clone(p.Copies)
	for _, id := range p.Copies {
		c.Current = append(c.Current, Copy{Node: id})
	}
	for _, e := range m.changes(p.Since) {
		absent := func(c Copy) bool { n, _ := m.Node(c.Node); return !n.servedAt(e) }
		present := slices.ContainsFunc(c.Current, func(x Copy) bool { return !absent(x) })
		if present {
			c.Current = slices.DeleteFunc(c.Current, absent)
		}
		c.Filling = slices.DeleteFunc(c.Filling, absent)
		if m.restored(e, p.Ino.Home()) {
			if present {
				c.Current = append(c.Current, c.Filling...)
			}
			c.Filling = nil
		}
		if len(c.Current)+len(c.Filling) < len(p.Copies) {
			if id, ok := m.spare(p, c.Current[0].Node, e); ok {
				c.Filling = append(c.Filling, Copy{id, e})
				if !slices.Contains(ever, id) {
					ever = append(ever, id)
				}
			}
		}
	}
	return c, ever
}

// restored reports whether copies of the files of a home were restored in the epoch e.
func (m Map) restored(e metadata.Epoch, home metadata.NodeID) bool {
	return slices.ContainsFunc(m.Restored, func(r Restoration) bool { return r.Epoch == e && !slices.Contains(r.Without, home) })
}

// changes returns the epochs after since in which a node joined or left, or copies were restored.
func (m Map) changes(since metadata.Epoch) []metadata.Epoch {
	var all []metadata.Epoch
	for _, r := range m.Restored {
		all = append(all, r.Epoch)
	}
	for _, n := range m.Nodes {
		for _, t := range n.Terms {
			all = append(all, t.From, t.To, t.Left)
		}
	}
	slices.Sort(all)
	from, _ := slices.BinarySearch(all, since+1)
	return slices.Compact(all[from:])
}

// spare returns the node that replaces a copy of p lost by the epoch e. For a local file it is the file's own node, or
// else the neighbour of the node with the other copy; for a striped file it is chosen by hash. It is behind another
// leaf switch than the other copy, if possible.
func (m Map) spare(p Part, other metadata.NodeID, e metadata.Epoch) (best metadata.NodeID, found bool) {
	if p.Index >= metadata.MaxMoved {
		return 0, false
	}
	up := func(n *Node) bool { return n.upAt(e) }
	beside := m.Nodes[other].Switch
	if own := &m.Nodes[p.Copies[0]]; p.Local && own.ID != other && up(own) && (own.Switch != beside || beside == "") {
		return own.ID, true
	}
	if p.Local {
		return m.neighbour(other, up)
	}
	h := m.hash(kindSpare, uint64(p.Ino)^mix(uint64(p.Index)))
	for _, apart := range []bool{true, false} {
		best, found = heaviest(h, len(m.Nodes), func(i int) (metadata.NodeID, bool) {
			n := &m.Nodes[i]
			return n.ID, up(n) && n.ID != other && (!apart || n.Switch != beside)
		})
		if found {
			break
		}
	}
	return best, found
}

// Changed returns the last epoch in which a node joined or left.
func (m Map) Changed() (e metadata.Epoch) {
	for _, n := range m.Nodes {
		e = max(e, n.Since)
	}
	return e
}

// RestoredBy returns the last epoch in which copies were restored; 0 if none were.
func (m Map) RestoredBy() metadata.Epoch {
	if len(m.Restored) == 0 {
		return 0
	}
	return m.Restored[len(m.Restored)-1].Epoch
}

// Unrestored reports whether files may have too few copies: a node was lost, and nodes have joined or left since copies
// were last restored.
func (m Map) Unrestored() bool {
	return m.Changed() > m.RestoredBy() &&
		slices.ContainsFunc(m.Nodes, func(n Node) bool { return n.State == Down && len(n.Terms) > 0 || len(n.Terms) > 1 })
}

// WithRestored returns the map of the next epoch, from which on all copies count that were to be made by the map of the
// epoch e, except for files whose home is lost. It returns false if nodes have joined or left since e, or if no copies
// were to be made.
func (m Map) WithRestored(e metadata.Epoch) (Map, bool) {
	if e < m.Changed() || !m.Unrestored() {
		return m, false
	}
	next := m
	next.Epoch++
	lost := m.filter(func(n Node) bool { return len(n.Terms) > 0 && !m.HomeServes(n.ID) })
	next.Restored = append(slices.Clip(m.Restored), Restoration{next.Epoch, lost})
	return next, true
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
