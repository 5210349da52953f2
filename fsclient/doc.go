// Package fsclient is the filesystem as one node of the job sees it: a Client routes every operation to the node that
// serves it, and is itself a metadata.Store. Sealed inodes are answered from a manifest on this node, live inodes by
// their home: this node's own store without a socket, or a stub.
//
//	mount ──> Client ──> locks       file locks, retries of unlocks
//	            │ └────> writeback   buffers of sequential writes
//	            ├──────> stripe      reads and writes of chunks on their owners
//	            ├──────> route       which node; redirects of split directories
//	            └──────> cache       attributes of datasets, space, stubs
//
// It caches the names and attributes that their homes have leased to it (package leases): a home recalls a lease before
// it acknowledges a change by another node, so two nodes never disagree about a name. The entries of a listing are
// leased with it. The Client also keeps the state of the files that are open here (File): how far this node has written
// beyond the size that their home knows. It must not know the kernel's protocol, nor how nodes store anything.
//
// # Open files
//
// The home of a file knows which nodes have it open (metadata.Opens). An open is reported in a call that is needed
// anyway; closes are reported in the background, many in one call. The home removes a file that has lost its last name
// and its last open.
//
// Small files of other nodes that are read in an order of their directory are opened and read ahead of the reader, many
// by one call to each node (ahead.go). Their content is used while their attributes are leased and have not changed.
//
// # Data
//
// Reads and writes go to the owners of the chunks and return when all have answered. Flush, Sync, Close and Getattr
// report the size and the time of modification to the home; a writer that continues to write does so about once a
// second. A write lease would save the call of Close, but the size of a closed file would be lost with this daemon. If
// the client dies before the report, bytes behind the end are left: they are not seen unless the file grows over them.
//
// A File.Append asks the home for its range. The client reports its completion with the next append, by Flush, or 10 ms
// later; until then the file ends before the range for all nodes.
//
// A truncate first cuts the objects and then sets the size. If the client dies in between, the file has its old length,
// and zeros from the new end on. Meanwhile the home keeps the size from growing (metadata.Append.Freeze). If the freeze
// ends too soon, the home refuses the size and the client cuts again: otherwise bytes that were not cut off could
// reappear.
//
// # Namespace
//
// Each operation is one call to the home of the (source) directory, which executes it there or together with other
// homes, as a whole or not at all (package txn). None takes effect twice: after a lost connection the client asks the
// home for the answer (rpc.Patient). If the home has restarted (ECONNRESET), or takes too long (ETIMEDOUT, EINTR), the
// caller must check whether the operation has happened.
//
// # Lock order
//
// Mutexes (mu) are not held across a remote call; wait.Mutexes are, and a context can interrupt them.
//
//	File.syncTurn
//	writeback.Buffer.writer
//	  File.sizeTurn
//	    appending.turn
//	      writeback.Buffer.mu
//	        writeback.Pool.mu
//	      fileTable.mu            never under File.mu
//	        File.mu
//	          locks.table.mu
//	      leases.Cache.mu
//	      cache.Stubs.mu
package fsclient
