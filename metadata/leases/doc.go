// Package leases lets a node cache what it knows of directories: a Table at the home
// records who was granted what, and a Cache at the holder keeps the answers. The home
// recalls leases only from holders, so that a change costs no message to nodes that have
// not asked within the last second, and a lease ends by itself.
//
// It does no I/O: the home's daemon calls the holders, and the clock is a parameter. It
// must not cache files or missing names. It grants nothing on a directory that another
// node has just changed, so that a directory shared by writers costs no recalls.
//
// # Order
//
// A home grants before it reads, and collects the holders after it has written:
//
//	lookup   1 Table.Grant   2 read the record   3 reply
//	change   1 write         2 Table.Change      3 recall from the holders   4 acknowledge
//
// So every node that got the old record is among the holders. Its reply may still be on the
// way during the recall; therefore a holder starts a Fetch before it asks, and answers that
// are recalled meanwhile are not cached.
//
// The holder counts a term from before its request, the home from the grant: the holder's
// ends first. For a holder that cannot be reached the home waits until its term ends. A
// restarted home does not know its grants, and acknowledges changes only after a term.
//
// # Locks
//
// Table.mu and Cache.mu are never held together, nor during a call.
package leases
