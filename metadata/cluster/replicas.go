package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Replicas is the number of replicas of each file of a dataset, besides the owner's copy: a number, ReplicasAll or
// ReplicasSpare; "": none.
type Replicas string

// The values of Replicas that are not numbers.
const (
	ReplicasAll   Replicas = "all"   // every node has every file
	ReplicasSpare Replicas = "spare" // as many files on every node as there is room for
)

// ParseReplicas parses a user's value.
func ParseReplicas(s string) (Replicas, error) {
	r := Replicas(s)
	if s == "none" || s == "0" {
		r = ""
	}
	return r, r.Check()
}

// Check returns an error for an invalid value.
func (r Replicas) Check() error {
	if r == "" || r == ReplicasAll || r == ReplicasSpare {
		return nil
	}
	if n, err := strconv.ParseUint(string(r), 10, 15); err != nil || n == 0 || string(r) != strconv.FormatUint(n, 10) {
		return fmt.Errorf("want a number of nodes, all, spare or none: %w", syscall.EINVAL)
	}
	return nil
}

// Count returns the number of replicas of a file in a job with the given number of nodes.
func (r Replicas) Count(nodes int) int {
	most := max(nodes-1, 0)
	switch r {
	case "":
		return 0
	case ReplicasAll, ReplicasSpare:
		return most
	}
	n, _ := strconv.Atoi(string(r)) // Check has validated it
	return min(n, most)
}

// Replicas appends to buf the nodes for n replicas of owner's part of the file ino: the Up nodes with the greatest
// weights after that of a stand-in (Holder), so that a stand-in has a replica. If n covers all other nodes, they are in
// order of their numbers.
func (m Map) Replicas(buf []metadata.NodeID, ino metadata.Ino, owner metadata.NodeID, n int) []metadata.NodeID {
	holder, from := m.Holder(ino, owner), len(buf)
	if n >= len(m.Nodes)-1 {
		for i := range m.Nodes {
			if id := m.Nodes[i].ID; m.Nodes[i].State == Up && id != holder {
				buf = append(buf, id)
			}
		}
		return buf
	}
	h := m.hash(kindHolder, uint64(ino)^mix(uint64(owner)+1))
	for len(buf) < from+n {
		best, found := heaviest(h, len(m.Nodes), func(i int) (metadata.NodeID, bool) {
			id := m.Nodes[i].ID
			return id, m.Nodes[i].State == Up && id != holder && !slices.Contains(buf[from:], id)
		})
		if !found {
			break
		}
		buf = append(buf, best)
	}
	return buf
}

// ReplicaPosition returns the position of a chunk of a file (chunk 0 if the file is whole on one node) in the order in
// which every node makes its replicas of a dataset: a node's progress shows which replicas it has.
func (m Map) ReplicaPosition(ino metadata.Ino, chunk uint32) uint64 {
	return m.hash(kindReplica, uint64(ino)^mix(uint64(chunk)))
}
