// Package appends is the protocol of O_APPEND on a file that several nodes append to: Home is the half of the node that
// keeps the inode, Client the half of a node that appends. Both are state machines: no I/O, no clock, no locks of their
// own, so that a test can run them under any order of messages, losses and restarts.
//
// # Protocol
//
//	Client                                Home
//	Reserve (Seq, Len)      ──────────▶   Place: gives the bytes behind the tail away
//	Placed                  ◀──────────   Off, size that everybody sees
//	  … writes its bytes at Off …
//	Settlement (Seq+1)      ──────────▶   the reservation is complete: the size may grow over it
//	Settled                 ◀──────────   size that everybody sees
//
// A node has one reservation outstanding on a file. The size that all nodes see ends before the first outstanding
// reservation, so no node reads zeros where an append is in progress. fsync returns when the size covers the appends of
// the node, so an append that fsync has acknowledged is below a size that the home's store has.
//
// # Restart of the home
//
// The home's memory is lost with its process; its store is not. A restarted home gives no place until every node has
// reported its appends: extents that were written and may lie above the stored size, and the outstanding reservation,
// with or without its place. Only a restarted home uses reports. A home that has been running throughout knows every
// place; a report would restore reservations that have since completed.
//
// A reservation whose place is unknown to its client fills a gap between the reported extents, if one fits; otherwise
// it gets a new place. A client accepts no place that it requested before its report: it asks again, with the same Seq.
// It does not matter which home has answered, nor when that home started: another node may stand in for a lost home,
// with another clock.
//
// # Restart of a client
//
// The first message of a new run ends the outstanding work of earlier runs: the reservation counts as complete, and
// reads as zeros where it was not written. Sequence numbers start over with each run.
//
// # Invariant
//
// No byte below the stored size belongs to two acknowledged appends, and every
// append that fsync acknowledged lies below the stored size with its own bytes.
// TestRandomHistories checks it after every step.
package appends
