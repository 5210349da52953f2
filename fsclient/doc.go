// Package fsclient is the filesystem as one node of the job sees it: a Client
// routes every operation to the node that has what it needs, and is itself a
// metadata.Store. Its one idea is that an inode number says where its record
// is and a layout says where its bytes are, so that nothing has to be asked
// for the way; it answers from a manifest on this node where the inode is
// sealed, from this node's own store without a socket, or from a stub.
//
// It caches no metadata, so two nodes never disagree about a name. What it
// keeps is the state of the files that are open on this node (File): how far
// this node has written that their home does not know yet.
//
// It refuses: to write where a dataset is; RENAME_EXCHANGE between directories
// of two homes (EINVAL); to call a node that the map says is Down (EHOSTDOWN).
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
// After a write that failed, the bytes of its range are the old ones or the
// new ones, each by itself.
//
// # Operations on two nodes
//
// The halves of such an operation are done one after the other, in the order
// below. What stands to the right is what remains if the client dies, or
// cannot reach the second node, after that step; an error that is certain is
// taken back, and the operation is as if it had not been tried.
//
//	truncate  1 cut the objects      the file's old length, zeros from the new end on
//	          2 set the size
//	unlink    1 remove the entry     an inode that no entry names: space is lost until the job ends
//	          2 take off the link    an orphan: the same, but its home knows of it
//	          3 remove the objects   an orphan without data
//	          4 reap
//	mkdir     1 make the inode       an inode that no entry names, a few bytes
//	          2 enter it
//	rmdir     1 drop the inode       an entry of a directory that is gone: whoever looks it up removes it
//	          2 remove the entry
//	link      1 add the link         a link count that is one too high: space is not given back
//	          2 enter the name
//	rename    1 add a link           as with link
//	(file)    2 enter the new name   both names, two links: both are good
//	          3 remove the old name  a link count that is one too high
//	          4 take off the link
//	          5 what was replaced is unlinked from step 2 on
//	rename    1 drop what is to be replaced, if it is a directory: as with rmdir
//	(dir)     2 enter the new name   both names of the one directory
//	          3 remove the old name
//
// So a rename between directories of two homes is not atomic: for a moment
// both names are there, never none. Within one home it is.
//
// That a directory is not moved below itself is checked by the kernel for the
// moves of one mount, and by a store for what it has. Two moves on two nodes
// at the same time, each of which is right by itself, can still make a loop;
// directories know their parents only as a hint.
//
// # Locks
//
// Nothing is locked across a remote call but File.turn, which a context can
// interrupt.
//
//	File.turn
//	  fileTable.mu
//	  File.mu
//	  Client.stubMu
//	spaceCache.turn
//	  spaceCache.mu
package fsclient
