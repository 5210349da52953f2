package cluster

import (
	"cmp"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
)

// The hash of a thing is of its own kind, so that a file and a directory with
// equal bits do not follow each other.
const (
	kindStripe uint64 = 0x737472697065 + iota
	kindDir
	kindFile
	kindEntry
	kindHolder
)

// mix is the finalizer of splitmix64: every bit of x counts in every bit of
// the result, and different x give different results.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// weight is the rendezvous weight of the node id for a thing with the hash h.
func weight(h uint64, id metadata.NodeID) uint64 {
	return mix(h ^ mix((uint64(id)+1)*0x9e3779b97f4a7c15))
}

func (m Map) hash(kind, x uint64) uint64 { return mix(x ^ mix(kind^mix(m.Seed))) }

// Order is the nodes of a file's stripe, in the order of its chunks: chunk i
// lies on Order[i%len(Order)]. It follows from the inode number and the layout
// alone once the layout's epoch has begun: later epochs do not change it, so
// a node of it may be Down. It is empty if no node was Up then, and for what
// lies on no node.
func (m Map) Order(ino metadata.Ino, l metadata.Layout) []metadata.NodeID {
	if l.Kind == metadata.Local {
		return []metadata.NodeID{l.Node}
	}
	if l.Kind == metadata.Spilled {
		return nil
	}
	type place struct {
		w  uint64
		id metadata.NodeID
	}
	h := m.hash(kindStripe, uint64(ino))
	places := make([]place, 0, len(m.Nodes))
	for _, n := range m.Nodes {
		if l.Epoch == 0 || n.upAt(l.Epoch) {
			places = append(places, place{weight(h, n.ID), n.ID})
		}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(b.w, a.w), cmp.Compare(a.id, b.id))
	})
	if l.Width > 0 && int(l.Width) < len(places) {
		places = places[:l.Width]
	}
	order := make([]metadata.NodeID, len(places))
	for i, p := range places {
		order[i] = p.id
	}
	return order
}

// DirHome is the node that shall keep a new directory name of parent: one of
// those that are Up, by hash.
func (m Map) DirHome(parent metadata.Ino, name string) metadata.NodeID {
	return m.best(xxh3.HashStringSeed(name, m.hash(kindDir, uint64(parent))))
}

// nearDirs is how many directories of one parent are kept where they are made.
const nearDirs = 8

// NewDirHome is the node that shall keep a new directory name of parent, which
// has nlink links, made by the node maker: maker itself as long as parent has
// few directories, so that who makes a directory for his own use calls nobody
// to work in it; then DirHome, so that a tree is spread. A maker that is not Up,
// or has no share, keeps none.
func (m Map) NewDirHome(parent metadata.Ino, nlink uint32, name string, maker metadata.NodeID) metadata.NodeID {
	if n, ok := m.Node(maker); ok && n.State == Up && nlink < 2+nearDirs {
		return maker
	}
	return m.DirHome(parent, name)
}

// FileOwner is the node that shall hold the sealed file at path, relative to
// its dataset: one of those that are Up, by hash. Each node gets an unbiased
// random sample of the paths, of about equal size.
func (m Map) FileOwner(path string) metadata.NodeID {
	return m.best(xxh3.HashStringSeed(path, m.hash(kindFile, 0)))
}

// Holder is the node that is to have what the node id has of a sealed file:
// id itself, or while id is Down one of those that are Up, by hash, so that what
// a lost node had is spread over all others.
func (m Map) Holder(ino metadata.Ino, id metadata.NodeID) metadata.NodeID {
	if n, ok := m.Node(id); ok && n.State != Down {
		return id
	}
	return m.best(m.hash(kindHolder, uint64(ino)^mix(uint64(id)+1)))
}

// best is the Up node of the greatest weight; where no node is Up, the one of
// all nodes, so that there always is an answer.
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
