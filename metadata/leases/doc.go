// Package leases lets a node cache names and inodes: a Table at the home records the leases of each node, and a Cache
// at the holder keeps the answers. The home recalls leases only from holders.
//
// A lease belongs to a session of its holder at its home. A session lasts a second; the holder renews the sessions that
// it uses, with one small call for all leases of a home, so that unchanged names and attributes cost no calls for ten
// seconds. A session with a recall that the holder has not answered is not renewed: it ends within the second, with all
// its leases. So a holder that is lost or stopped delays a change by at most a second.
//
// While the attributes of a directory are leased, a Cache also keeps the directory's listing, which answers for names
// that the directory does not have. A change of an entry therefore recalls the attributes of its directory.
//
// A Cache also observes the order in which the files of a listed directory are read, and returns the files worth
// reading ahead (Cache.Ahead).
//
// It does no I/O: the home's daemon calls the holders, and the clock is a parameter. It grants no lease on records that
// another node has just changed, so that files and directories shared by writers cost no recalls.
//
// From the node that makes a change, a home recalls only leases that the node has requested since the change began: the
// node drops the rest by itself, and caches nothing for a while (Cache.Doubt) if the call had no answer. The request
// must reach the home within that time; the change may take longer. A node keeps its lease on a file's attributes over
// its own change (Cache.Change) if it has held one lease throughout: a change by another node would have recalled it.
//
// # Order
//
// A home grants a lease after it has read, and collects the holders after it has written:
//
//	lookup   1 Table.Ask   2 read the record   3 Table.Grant   4 reply
//	change   1 write             2 Table.Change   3 recall from the holders   4 Table.Recalled   5 acknowledge
//
// A change by another node after the read either finds the holder, or precedes the grant: then no lease is granted for
// a term, nor for a record that was read before that change. Two concurrent changes both recall. The reply to a lookup
// may still be in flight during the recall; therefore a holder starts a Fetch before it asks, and does not cache
// answers that are recalled in the meantime, or that it has changed itself.
//
// The holder counts a term from before its request, the home from the grant: so the holder's term ends first. If a
// holder cannot be reached, the home waits until its term ends. A restarted home does not know its grants: it
// acknowledges changes only after a term, and renews no earlier session.
//
// # Locks
//
// Table.mu and Cache.mu are never held together, nor during a call.
package leases
