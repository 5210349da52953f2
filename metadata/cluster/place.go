package cluster

import (
	"cmp"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
)

// The hash kinds make hashes differ, so that a file and a directory with equal bits are placed independently.
const (
	kindStripe uint64 = 0x737472697065 + iota
	kindDir
	kindFile
	kindEntry
	kindHolder
	kindReplica
	kindSpare
)

// mix is the finalizer of splitmix64, a bijection in which every bit of x affects every bit of the result.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// weight returns the rendezvous weight of the node id for an object with the hash h.
func weight(h uint64, id metadata.NodeID) uint64 {
	return mix(h ^ mix((uint64(id)+1)*0x9e3779b97f4a7c15))
}

func (m Map) hash(kind, x uint64) uint64 { return mix(x ^ mix(kind^mix(m.Seed))) }

// place is a candidate node for a part of a file.
type place struct {
	w  uint64
	id metadata.NodeID
}

func heavier(a, b place) int { return cmp.Or(cmp.Compare(b.w, a.w), cmp.Compare(a.id, b.id)) }

// Order returns the nodes of a file's stripe: chunk i is on Order[i%len(Order)]. With two copies, the second half of
// the list has the second copies of the first half, in its order; a list of one node has no second copies. The two
// copies are behind different leaf switches, as far as the switches are known. Once the layout's epoch has begun, the
// result depends only on the inode number and the layout: later epochs do not change it, so it may contain a Down node.
// It is empty if no node was Up then, and for files that are stored nowhere.
func (m Map) Order(ino metadata.Ino, l metadata.Layout) []metadata.NodeID {
	if l.Kind == metadata.Local && l.Copied() && !ino.Sealed() {
		return m.pair(l.Node, l.Epoch)
	}
	if l.Kind == metadata.Local {
		return []metadata.NodeID{l.Node}
	}
	if l.Kind == metadata.Overflow {
		return nil
	}
	h := m.hash(kindStripe, uint64(ino))
	places := make([]place, 0, len(m.Nodes))
	for i := range m.Nodes {
		if n := &m.Nodes[i]; l.Epoch == 0 || n.upAt(l.Epoch) {
			places = append(places, place{weight(h, n.ID), n.ID})
		}
	}
	width := int(l.Width)
	if width == 0 && !ino.Sealed() {
		width = metadata.DefaultWidth
	}
	if l.Copied() && !ino.Sealed() {
		if half := max(len(places)/2, 1); width == 0 || width > half {
			width = half
		}
		width = min(2*width, len(places))
		if len(places) > 1 && m.switched() {
			slices.SortFunc(places, heavier)
			return nodes(m.apart(places, width/2))
		}
	}
	if width == 0 {
		width = len(places)
	}
	return nodes(top(places, min(width, len(places))))
}

func nodes(places []place) []metadata.NodeID {
	order := make([]metadata.NodeID, len(places))
	for i, p := range places {
		order[i] = p.id
	}
	return order
}

// top returns the n heaviest places, heaviest first. It reorders places.
func top(places []place, n int) []place {
	slices.SortFunc(places[:n], heavier)
	for _, p := range places[n:] {
		if n > 0 && heavier(p, places[n-1]) < 0 {
			at, _ := slices.BinarySearchFunc(places[:n], p, heavier)
			copy(places[at+1:n], places[at:])
			places[at] = p
		}
	}
	return places[:n]
}

// DirHome returns the home for a new directory name of parent: an Up node, chosen by hash.
func (m Map) DirHome(parent metadata.Ino, name string) metadata.NodeID {
	return m.best(xxh3.HashStringSeed(name, m.hash(kindDir, uint64(parent))))
}

// nearDirs is the number of directories of one parent that are homed where they are created.
const nearDirs = 8

// NewDirHome returns the home for a new directory name of parent, which has nlink links and is created by the node
// maker: maker itself while parent has few directories, so that work in a private directory needs no calls; then
// DirHome, to distribute the tree. A maker that is not Up, or not in the job, never becomes the home.
func (m Map) NewDirHome(parent metadata.Ino, nlink uint32, name string, maker metadata.NodeID) metadata.NodeID {
	if n, ok := m.Node(maker); ok && n.State == Up && nlink < 2+nearDirs {
		return maker
	}
	return m.DirHome(parent, name)
}

// FileOwner returns the owner of the sealed file at path, relative to its dataset: an Up node, chosen by hash. Each
// node gets an unbiased random sample of the paths, of about equal size.
func (m Map) FileOwner(path string) metadata.NodeID {
	return m.best(xxh3.HashStringSeed(path, m.hash(kindFile, 0)))
}

// Holder returns the node that has id's part of a sealed file: id itself, or, while id is Down, an Up node chosen by
// hash, so that the part of a lost node is distributed over all others.
func (m Map) Holder(ino metadata.Ino, id metadata.NodeID) metadata.NodeID {
	if n, ok := m.Node(id); ok && n.State != Down {
		return id
	}
	return m.best(m.hash(kindHolder, uint64(ino)^mix(uint64(id)+1)))
}

// best returns the Up node with the greatest weight, or, if none is Up, the node with the greatest weight.
func (m Map) best(h uint64) metadata.NodeID {
	of := func(want func(Node) bool) (metadata.NodeID, bool) {
		return heaviest(h, len(m.Nodes), func(i int) (metadata.NodeID, bool) { return m.Nodes[i].ID, want(m.Nodes[i]) })
	}
	if up, found := of(func(n Node) bool { return n.State == Up }); found {
		return up
	}
	all, _ := of(func(Node) bool { return true })
	return all
}
