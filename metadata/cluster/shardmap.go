package cluster

import (
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
)

// ShardMap says where the entries of sharded directories are that were split in
// one epoch. It is all that the answer depends on, so a node that keeps a
// section needs no map.
type ShardMap struct {
	Epoch metadata.Epoch
	Seed  uint64
	Nodes []metadata.NodeID // by id
}

// ShardMap is the placement of directories that are split in the epoch e. It
// is final once the epoch has begun.
func (m Map) ShardMap(e metadata.Epoch) ShardMap {
	return ShardMap{Epoch: e, Seed: m.Seed, Nodes: m.UpAt(e)}
}

// EntryHome is the node that keeps the entry name of a directory that was
// spread in the epoch e; with e 0, of one that was not: its home.
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

// Home is the node that keeps the entry name of dir.
func (s ShardMap) Home(dir metadata.Ino, name string) metadata.NodeID {
	h := Map{Seed: s.Seed}.hash(kindEntry, uint64(dir))
	best, _ := heaviest(xxh3.HashStringSeed(name, h), len(s.Nodes), func(i int) (metadata.NodeID, bool) {
		return s.Nodes[i], true
	})
	return best
}

// Next is the node whose shard is listed after that of id; false if id's is
// the last.
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

// heaviest is the node of the greatest weight for a thing with the hash h,
// among the n candidates that count.
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
