package metadata

import (
	"context"
	"time"
)

// LeaseKey names the object of a lease: the attributes of the directory Ino if Name is empty, else
// its entry Name, if that is a directory.
type LeaseKey struct {
	Ino  Ino
	Name string
}

// Lease is how long the requesting node may cache an answer about a directory, from the moment of
// its request. Zero is not at all. Until then the home recalls it before it acknowledges a change
// by another node.
type Lease struct {
	Entry time.Duration // for the entry
	Attr  time.Duration // for the attributes of the directory
}

// Leaser grants leases on directories. Answers about other inodes come without a lease.
type Leaser interface {
	// LookupLease is Lookup for the node by.
	LookupLease(ctx context.Context, dir Ino, name string, by NodeID) (Entry, Lease, error)
	// GetattrLease is Getattr for the node by.
	GetattrLease(ctx context.Context, ino Ino, by NodeID) (Attr, Lease, error)
}
