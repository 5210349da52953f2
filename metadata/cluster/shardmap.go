package cluster

import (
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
)

// ShardMap places the entries of directories that were split in one epoch. A node with a shard needs no other map.
type ShardMap struct {
	Epoch metadata.Epoch
	Seed  uint64
	Nodes []metadata.NodeID // by id
}

// ShardMap returns the placement for directories that are split in the epoch e. It is final once the epoch has begun.
func (m Map) ShardMap(e metadata.Epoch) ShardMap {
	return ShardMap{Epoch: e, Seed: m.Seed, Nodes: m.UpAt(e)}
}

// EntryHome returns the node with the entry name of a directory that was split in the epoch e, or, with e 0, the home
// of the directory.
func (m Map) EntryHome(dir metadata.Ino, name string, e metadata.Epoch) metadata.NodeID {
	if e == 0 {
		return dir.Home()
	}
	h := m.hash(kindEntry, uint64(dir))
	best, _ := heaviest(xxh3.HashStringSeed(name, h), len(m.Nodes), func(i int) (metadata.NodeID, bool) {
		return m.Nodes[i].ID, m.Nodes[i].upAt(e)
	})
	return best
}

// Home returns the node with the entry name of dir.
func (s ShardMap) Home(dir metadata.Ino, name string) metadata.NodeID {
	h := Map{Seed: s.Seed}.hash(kindEntry, uint64(dir))
	best, _ := heaviest(xxh3.HashStringSeed(name, h), len(s.Nodes), func(i int) (metadata.NodeID, bool) {
		return s.Nodes[i], true
	})
	return best
}

// Next returns the node whose shard is listed after that of id; false if there is none.
func (s ShardMap) Next(id metadata.NodeID) (metadata.NodeID, bool) {
	i, found := slices.BinarySearch(s.Nodes, id)
	if found {
		i++
	}
	if i == len(s.Nodes) {
		return 0, false
	}
	return s.Nodes[i], true
}

// heaviest returns the node with the greatest weight for the hash h, among the n candidates that count.
func heaviest(h uint64, n int, candidate func(int) (metadata.NodeID, bool)) (best metadata.NodeID, found bool) {
	var most uint64
	for i := range n {
		id, counts := candidate(i)
		if !counts {
			continue
		}
		if w := weight(h, id); !found || w > most {
			best, most, found = id, w, true
		}
	}
	return best, found
}
