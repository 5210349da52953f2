// Package leases lets a node cache what it knows of names and inodes: a Table at the home
// records who was granted what, and a Cache at the holder keeps the answers. The home
// recalls leases only from holders, so that a change costs no message to nodes that have
// not asked within the last second, and a lease ends by itself.
//
// It does no I/O: the home's daemon calls the holders, and the clock is a parameter. It
// must not cache missing names. It grants nothing on what another node has just changed, so
// that files and directories shared by writers cost no recalls.
//
// # Order
//
// A home grants after it has read, and collects the holders after it has written:
//
//	lookup   1 read the record   2 Table.Grant    3 reply
//	change   1 write             2 Table.Change   3 recall from the holders   4 Table.Recalled   5 acknowledge
//
// A change after the read by another node finds the holder, or has come before the grant: then
// nothing is granted for a term, and the asker's term, which began before it asked, is over.
// Two changes at the same time both recall. The reply to a lookup may still be on its way
// during the recall; therefore a holder starts a Fetch before it asks, and answers that are
// recalled meanwhile, or changed by the holder itself, are not cached.
//
// The holder counts a term from before its request, the home from the grant: the holder's
// ends first. For a holder that cannot be reached the home waits until its term ends. A
// restarted home does not know its grants, and acknowledges changes only after a term.
//
// # Locks
//
// Table.mu and Cache.mu are never held together, nor during a call.
package leases
