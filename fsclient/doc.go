// Package fsclient is the filesystem as one node of the job sees it: a Client
// routes every operation to the node that has what it needs, and is itself a
// metadata.Store. Its one idea is that an inode number says where its record
// is and a layout says where its bytes are, so that nothing has to be asked
// for the way; it answers from a manifest on this node where the inode is
// sealed, from this node's own store without a socket, or from a stub.
//
// It keeps no metadata of files, and of directories only what their homes have
// leased to it (package leases): they say so before a change by another node is
// acknowledged, so two nodes never disagree about a name. That a directory is
// wide it remembers, because it never is mistaken for long: a node that does not
// keep an entry says where it is. Beside that it keeps
// the state of the files that are open on this node (File): how far this node
// has written that their home does not know yet.
//
// The home of a file knows which nodes have it open (metadata.Opens). An open,
// or the create that opens, tells it in the call that it needs anyway; closes
// are told later, many in one call, and nobody waits for that. What loses its
// last name is removed by its home, never by a client.
//
// It refuses: to write where a dataset is; to call a node that the map says is
// Down (EHOSTDOWN).
//
// # Data
//
// Reads and writes go to the owners of the chunks, several at once, and return
// when all have answered. The size and the time of modification are told to
// the inode's home by Flush, Sync, Close, and whenever this node asks for the
// attributes; a writer that goes on writing tells it about once a second. A
// client that dies before has written bytes behind the end: they are not seen,
// but a later growth of the file can show them.
//
// What an application writes through a Writer is
// gathered, if it goes on where the last write of the file on this node has ended: it is acknowledged before it
// is sent, up to 512 KiB at once, of which four may be on their way while the next
// is filled. Whatever depends on it here waits until it has arrived: reads, attributes,
// sizes, other ways to write, Flush, Sync, and the end of any lock on this node;
// and nothing waits longer than half a second. What could not be written is told
// to those who wrote it, by what they do next, and by Sync to each Writer that
// there was. What is
// gathered for a node is claimed of what it said last that it has free: a client
// claims 31 MiB of an answer, and only of one that leaves 64 MiB for each node of
// the job, which is more than all of them have gathered and claimed. So it finds
// room. A node that has less is written to as before, so that the write itself is
// ENOSPC; only where what is written so takes all of that in a second, it is told
// later. All files of a client gather 32 MiB
// together (WriteMemory); who finds no room there writes through.
//
// An append (File.Append) asks the home for its place, which costs one call.
// That it is complete is told with the next one, by Flush, or 10 ms later; the
// home lets everybody see the file up to the first append under way. Who is alone
// with the file, as the home says with each place, gathers appends as well: they
// have a place together. One that another node makes at that moment stands before
// or behind them, never between the bytes of one.
//
// Locks are the home's as well (Client.Lock). Who waits for one is in a queue
// there and waits here, without a call, to be woken; he asks again by himself
// now and then. What was granted is kept here, for a home that starts again. A lock
// ends when what was written here has gone out; where who ends it is interrupted, or
// the home does not answer, the client goes on with that by itself until the home
// has heard of it or is given up, and the owner gets no other lock of the file before. So
// it does where a wait was interrupted and the home did not hear of that: what was granted
// meanwhile ends.
//
// After a write that failed, the bytes of its range are the old ones or the
// new ones, each by itself. One whose connection broke is made again
// (rpc.Patient), and so is what only reads; nothing of it is left behind that
// could come after a later write. Of a sync the answer is asked for, because a
// disk tells an error once.
//
// # Operations on the namespace
//
// Each is one call to one home, that of the (source) directory, which does it
// there or together with other homes, as a whole or not at all (package txn).
// None takes effect twice: when an answer is lost with its connection the home
// is asked for it (rpc.Patient). If it has forgotten it, because it was started
// again (ECONNRESET), or takes too long (ETIMEDOUT, EINTR), the operation has
// happened as a whole or not at all, and who asked has to look
// which. Only Lookup asks again, where a name was
// given to another inode between the call for the entry and the one for its
// attributes.
//
// A truncate cuts the objects and then sets the size; if the client dies in
// between, the file has its old length, and zeros from the new end on.
//
// # Locks
//
// Nothing is locked across a remote call but the turns, which a context can
// interrupt.
//
//	File.syncTurn
//	  tail.mu
//	tail.turn
//	  tail.mu
//	    tails.mu
//	  rooms.mu
//	  File.turn
//	    appending.turn
//	      fileTable.mu
//	        File.mu
//	          lockTable.mu
//	  Client.stubMu
//	  leases.Cache.mu
//	spaceCache.turn
//	  spaceCache.mu
package fsclient
