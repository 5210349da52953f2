// Package rebuild replaces copies of files with two copies that were lost with a node. Its one idea is that the source
// decides nothing: the map says which copies must be made (cluster.Map.CopiesOf), and all of them count from one
// epoch on, when every node has reported that it has made the copies of which it is the source (package copies).
//
//	guard.go     refuses reads of a copy that may be old, and writes by a writer that may not know of a copy in the
//	             making; delays writes to a range while it is copied
//	rebuild.go   finds this node's objects that have no other copy, and copies them
//	intake.go    stores the ranges that other nodes copy to this one; refuses late ranges, and ranges without room
//
// An object is copied from its beginning, range by range. While a range is in transit, writes to the object (and to a
// few others) wait, for at most callTime. The source keeps no state on disk: after a restart or a change of the map,
// copies that may be incomplete are made again.
//
// Locks:
//
//	Guard.ranges
//	  intake.mu
//	    Guard.mu
//
// The package must not know open files or names. The remains of an old copy are removed with its file.
package rebuild
