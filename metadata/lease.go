package metadata

import (
	"context"
	"time"
)

// LeaseKey names the object of a lease: the attributes of the inode Ino if Name is empty, else
// the entry Name of the directory Ino.
type LeaseKey struct {
	Ino  Ino
	Name string
}

// Lease is how long the requesting node may cache an answer, from the moment of its request. Zero
// is not at all. Until then the home recalls it before it acknowledges a change by another node.
type Lease struct {
	Entry time.Duration // for the entry: its inode
	Attr  time.Duration // for the attributes
}

// LeasedEntry is an entry with the leases on it and on its Attr.
type LeasedEntry struct {
	Entry
	Lease Lease
}

// Leaser grants leases on names and inodes.
type Leaser interface {
	// LookupLease is Lookup for the node by.
	LookupLease(ctx context.Context, dir Ino, name string, by NodeID) (Entry, Lease, error)
	// GetattrLease is Getattr for the node by.
	GetattrLease(ctx context.Context, ino Ino, by NodeID) (Attr, Lease, error)
	// ReadDirLease is ReadDir for the node by.
	ReadDirLease(ctx context.Context, dir Ino, after string, limit int, by NodeID) ([]LeasedEntry, error)
}
