package metadata

import (
	"context"
	"time"
)

// LeaseKey names the object of a lease: the attributes of the inode Ino if Name is empty, else the entry Name of the
// directory Ino.
type LeaseKey struct {
	Ino  Ino
	Name string
}

// Lease is how long the requesting node may cache an answer, from the moment of its request, provided that the session
// lasts as long. Zero means no lease. While the lease is valid, the home recalls it before it acknowledges a change by
// another node.
type Lease struct {
	Entry   time.Duration // for the entry, that is, its inode number
	Attr    time.Duration // for the attributes
	Session LeaseSession
	Term    time.Duration // of the session, unless it is renewed
}

// LeaseSession groups all leases of one node from one home: they end with it. Zero is no session.
type LeaseSession struct {
	Home NodeID
	ID   uint64 // never reused, even by later runs of the home
}

// LeasedEntry is an entry with the terms of the leases on it and on its Attr, as in Lease.
type LeasedEntry struct {
	Entry
	EntryTerm, AttrTerm time.Duration
}

// LeasedListing is a part of the entries of a directory.
type LeasedListing struct {
	Dir Attr
	// Lease is on Dir; its session is that of all leases in the answer. If its Entry is not zero, the names in the
	// answer, and the absence of others, are valid as long as Dir is.
	Lease   Lease
	Entries []LeasedEntry
}

// Leaser grants leases on names and inodes.
type Leaser interface {
	// LookupLease is Lookup on behalf of the node by.
	LookupLease(ctx context.Context, dir Ino, name string, by NodeID) (Entry, Lease, error)
	// GetattrLease is Getattr on behalf of the node by.
	GetattrLease(ctx context.Context, ino Ino, by NodeID) (Attr, Lease, error)
	// ReadDirLease is ReadDir on behalf of the node by, with a limit that fits in one answer.
	ReadDirLease(ctx context.Context, dir Ino, after string, limit int, by NodeID) (LeasedListing, error)
	// RenewLease returns the new term of the session, from the moment of the request; zero if the session has ended.
	RenewLease(ctx context.Context, session uint64, by NodeID) (time.Duration, error)
}
