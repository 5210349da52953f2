package metadata

import (
	"context"
	"time"
)

// LeaseKey is what a lease is on: the attributes of the directory Ino if Name
// is empty, and else its entry Name, if that is a directory's.
type LeaseKey struct {
	Ino  Ino
	Name string
}

// Lease is for how long the node that asked may keep an answer about a
// directory, counted from the moment it asked. Zero is not at all. Until then
// the home tells the node of every change by another before that change is
// acknowledged.
type Lease struct {
	Entry time.Duration // that the name leads to this directory
	Attr  time.Duration // the attributes of the directory
}

// Leaser is the power of a node's store to promise that an answer about a
// directory stays true. What is no directory is answered without a promise.
type Leaser interface {
	// LookupLease is Lookup for the node by.
	LookupLease(ctx context.Context, dir Ino, name string, by NodeID) (Entry, Lease, error)
	// GetattrLease is Getattr for the node by.
	GetattrLease(ctx context.Context, ino Ino, by NodeID) (Attr, Lease, error)
}
