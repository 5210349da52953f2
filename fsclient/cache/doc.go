// Package cache holds the caches of a client: the attributes of dataset files (Attrs), the space of the job (Space),
// and the stubs of the other nodes (Stubs). Its one idea is that none of these needs to be invalidated: dataset files
// never change, the space is at most a second old, and a stub stays the same for as long as its node.
//
// State of the live realm that the client caches needs leases: see package leases.
//
// Lock order:
//
//	Space.asking     held while nodes are asked
//	  Space.mu
//	Stubs.mu
package cache
