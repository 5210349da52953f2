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

// Lease is how long the requesting node may cache an answer, from the moment of its request, if the
// session lasts so long. Zero is not at all. Until then the home recalls it before it acknowledges a
// change by another node.
type Lease struct {
	Entry   time.Duration // for the entry: its inode
	Attr    time.Duration // for the attributes
	Session LeaseSession
	Term    time.Duration // of the session, if it is not renewed
}

// LeaseSession is what all leases of one node from one home end with. Zero is none.
type LeaseSession struct {
	Home NodeID
	ID   uint64 // never used again, also by later runs of the home
}

// LeasedEntry is an entry with the terms of the leases on it and on its Attr, as in Lease.
type LeasedEntry struct {
	Entry
	EntryTerm, AttrTerm time.Duration
}

// LeasedListing is entries of a directory.
type LeasedListing struct {
	Dir Attr
	// Lease is on Dir, of the session of all leases in the answer. Its Entry is not zero if what the
	// answer says about names, also about their absence, is valid as long as Dir.
	Lease   Lease
	Entries []LeasedEntry
}

// Leaser grants leases on names and inodes.
type Leaser interface {
	// LookupLease is Lookup for the node by.
	LookupLease(ctx context.Context, dir Ino, name string, by NodeID) (Entry, Lease, error)
	// GetattrLease is Getattr for the node by.
	GetattrLease(ctx context.Context, ino Ino, by NodeID) (Attr, Lease, error)
	// ReadDirLease is ReadDir for the node by, with a limit that fits in one answer.
	ReadDirLease(ctx context.Context, dir Ino, after string, limit int, by NodeID) (LeasedListing, error)
	// RenewLease returns the new term of the session, from the moment of the request; zero if it
	// has ended.
	RenewLease(ctx context.Context, session uint64, by NodeID) (time.Duration, error)
}
