// Package rebuild makes copies of files with two copies in the place of those that were lost with a node. Its one idea
// is that the source decides nothing: the map says which copies are to be made (cluster.Map.CopiesOf), and all count
// from one epoch on, when every node has reported that it has made those which are made from it (package copies).
//
//	guard.go     refuses reads of a copy that may be old, and writes of a writer that may not know of a copy that
//	             is made; holds back the writes to a range while it is copied
//	rebuild.go   finds this node's objects that have no other copy, and copies them
//	intake.go    stores what other nodes copy to this one, and refuses what is late or finds too little room
//
// An object is copied from its beginning, range by range. While a range is on its way, writes to the object (and to a
// few others) wait, at most for callTime. Nothing is written on the source's disk: after a restart, or when the map has
// changed, what may be incomplete is made again.
//
// Locks:
//
//	Guard.ranges
//	  intake.mu
//	    Guard.mu
//
// It must not know files that are open, nor names. What is left of an old copy is removed with its file.
package rebuild
