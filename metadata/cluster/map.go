// Package cluster knows which nodes a job has, in which state they are, and
// where things are placed on them. Its one idea is that the Map is a value:
// the same Map gives the same answer on every node, so placement needs no
// table and no call. It does no I/O.
package cluster

import "github.com/bivouacfs/bivouac/metadata"

// State is what the cluster believes of a node.
type State uint8

const (
	// Joining is a node that has not reported yet.
	Joining State = iota
	// Up is a node that serves.
	Up
	// Down is a node that was given up; it does not come back in this job.
	Down
	// Leaving is a node that has finished its part of the job's end.
	Leaving
)

// Node is one node of the job.
type Node struct {
	ID    metadata.NodeID
	Host  string
	State State
	Addr  string         // host:port where its daemon answers; "" while Joining
	Since metadata.Epoch // the epoch in which State began
}

// Map is the job's cluster map. Maps are immutable: With… methods return a
// copy with the next epoch.
type Map struct {
	Epoch metadata.Epoch
	Seed  uint64 // of all placement; from the job's seed option or its id
	Nodes []Node // by ID
}
