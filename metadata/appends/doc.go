// Package appends is the protocol of O_APPEND on a file that several nodes
// append to: Home is the half of the node that keeps the inode, Client that of
// a node which appends. Both are state machines: no I/O, no clock, no lock of
// their own, so that a test can run them under any order of messages, losses
// and restarts.
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
// A node has one reservation outstanding on a file. The size that everybody
// sees ends before the first outstanding reservation, so no node reads zeros
// where an append is under way. fsync returns when the size covers the appends
// of the node, so an append that fsync has acknowledged is below a size that
// the home's store has.
//
// # Restart of the home
//
// The home's memory dies with its process; its store does not. A home that
// starts again gives no place until every node has reported what it knows of
// its appends: extents that were written and may lie above the stored size, and
// the outstanding reservation, with or without its place. Only such a home
// listens to reports. One that has been running all along knows every place; a
// report would bring back reservations that have completed meanwhile.
//
// A reservation whose place is unknown to its client fills a gap between the
// reported extents, if one fits; otherwise it gets a new place. A client accepts
// no place that it asked for before its report: it asks again, with the same
// Seq. Which home has answered does not count, nor when that started: another
// node may stand in for a lost home, by another clock.
//
// # Restart of a client
//
// The first message of a new run ends what the earlier runs had outstanding:
// the reservation counts as complete, and reads as zeros where it was not
// written. Sequence numbers begin anew with each run.
//
// # Invariant
//
// No byte below the stored size belongs to two acknowledged appends, and every
// append that fsync acknowledged lies below the stored size with its own bytes.
// TestRandomHistories checks it after every step.
package appends
