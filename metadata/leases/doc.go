// Package leases lets a node cache what it knows of names and inodes: a Table at the home
// records who was granted what, and a Cache at the holder keeps the answers. The home
// recalls leases only from holders.
//
// A lease belongs to a session of its holder at its home. A session lasts a second; the holder renews
// those that it uses, by one small call for all leases of a home, so that unchanged names and
// attributes cost no calls for ten seconds. A session with a recall that the holder has not
// answered is not renewed: it ends, and all its leases with it, within the second. So a holder that is
// lost, or stopped, delays a change by a second at most.
//
// While the attributes of a directory are leased, a Cache also keeps the directory's listing, which answers for names
// that the directory does not have. Whoever changes an entry therefore recalls the attributes of its directory.
//
// A Cache also sees in which order the files of a listed directory are read, and says which ones are worth reading
// ahead (Cache.Ahead).
//
// It does no I/O: the home's daemon calls the holders, and the clock is a parameter. It
// grants nothing on what another node has just changed, so that files and directories shared by writers
// cost no recalls.
//
// From the node that makes a change, a home recalls only what that has asked for since the change began: the node
// forgets the rest by itself, and caches nothing for a while (Cache.Doubt) if the call had no answer. In that time the
// request must reach the home; the change may take longer. A node keeps its lease on a file's attributes over
// its own change (Cache.Change) if it has held one lease throughout: a change by another node would have recalled it.
//
// # Order
//
// A home grants after it has read, and collects the holders after it has written:
//
//	lookup   1 Table.Ask   2 read the record   3 Table.Grant   4 reply
//	change   1 write             2 Table.Change   3 recall from the holders   4 Table.Recalled   5 acknowledge
//
// A change after the read by another node finds the holder, or has come before the grant: then
// nothing is granted for a term, nor for what was read longer ago.
// Two changes at the same time both recall. The reply to a lookup may still be on its way
// during the recall; therefore a holder starts a Fetch before it asks, and answers that are
// recalled meanwhile, or changed by the holder itself, are not cached.
//
// The holder counts a term from before its request, the home from the grant: the holder's
// ends first. For a holder that cannot be reached the home waits until its term ends. A
// restarted home does not know its grants: it acknowledges changes only after a term, and renews no session of before.
//
// # Locks
//
// Table.mu and Cache.mu are never held together, nor during a call.
package leases
