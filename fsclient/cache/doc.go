// Package cache has what a client remembers: attributes of files of datasets (Attrs),
// the space of the job (Space), and the stubs of the other nodes (Stubs). Its one
// idea is that nothing in it needs to be invalidated: files of datasets never change,
// the space is a second old at most, and a stub is the same for as long as a node.
//
// What the client keeps of the live realm needs leases: see package leases.
//
// Lock order:
//
//	Space.asking     held while nodes are asked
//	  Space.mu
//	Stubs.mu
package cache
