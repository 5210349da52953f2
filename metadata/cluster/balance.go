package cluster

import (
	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// slack limits how far the load of a node may exceed the mean: by one part in slack.
	slack = 16
	// largePart is the fraction of the mean load above which a file is large: one part in largePart.
	largePart = 64
)

// Balance assigns the files of one list to owners, like FileOwner, but bounds the load of each node with large files:
// if the owner by hash already has its share, the node with the next greatest weight gets the file, so that few large
// files are spread evenly. Small files are spread evenly by their number. The same list in the same order gives the
// same owners.
type Balance struct {
	m     Map
	most  int64   // limit of a node
	large int64   // bytes above which a file is large
	load  []int64 // bytes, by node
}

// Balance returns a Balance for files of total bytes.
func (m Map) Balance(total int64) *Balance {
	up := int64(max(len(m.Up()), 1))
	mean := (total + up - 1) / up
	return &Balance{m: m, most: mean + mean/slack, large: mean / largePart, load: make([]int64, len(m.Nodes))}
}

// Owner assigns the next file of the list. If no node has enough of its share left, the node with the least load owns
// it.
func (b *Balance) Owner(path string, size int64) metadata.NodeID {
	h := xxh3.HashStringSeed(path, b.m.hash(kindFile, 0))
	id, ok := heaviest(h, len(b.m.Nodes), func(i int) (metadata.NodeID, bool) {
		return b.m.Nodes[i].ID, b.m.Nodes[i].State == Up && (size <= b.large || b.load[i]+size <= b.most)
	})
	if !ok {
		id = b.least(h)
	}
	if int(id) < len(b.load) {
		b.load[id] += size
	}
	return id
}

// least returns the Up node with the least load; of several, the one with the greatest weight.
func (b *Balance) least(h uint64) metadata.NodeID {
	up := b.m.Up()
	if len(up) == 0 {
		return b.m.best(h)
	}
	least := b.load[up[0]]
	for _, id := range up {
		least = min(least, b.load[id])
	}
	id, _ := heaviest(h, len(up), func(i int) (metadata.NodeID, bool) { return up[i], b.load[up[i]] == least })
	return id
}
