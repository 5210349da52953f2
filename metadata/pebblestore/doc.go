// Package pebblestore keeps one node's part of the namespace in a Pebble
// store: the live inodes whose home is this node, the entries of the live
// directories among them, and one raw sorted table for the manifest of each
// sealed dataset. Its one idea is that every operation is one atomic batch, so
// that after a crash an operation is there or it is not.
//
// It refuses what concerns another node: it never changes a record whose home
// is elsewhere. Such operations are done in halves (metadata.Halves), by the
// client. The parts of metadata.Store that would need both sides answer EXDEV.
//
// # Keys
//
// Numbers in keys are big endian, so that byte order is number order.
//
//	01 'v'              version of this schema          value: 01
//	01 's'              the node that the store is of   value: node 2 bytes
//	01 'c'              counter limit                   value: 8 bytes; every counter below it may be in use
//	02 ino(8)           a live inode                    value: inode, below
//	03 dir(8) name      an entry of a live directory    value: entry, below
//	04 ino(8)           an orphan: a live inode without a name, not yet reaped; value empty
//	10 dataset(2) key   the raw table of a dataset      value: raw; the table's owner knows what they mean
//
// # Values
//
// "u" is an unsigned varint, "s" a zigzag varint (encoding/binary).
//
//	inode   01  mode u  nlink u  uid u  gid u  rdev u  size u
//	        mtime s  atime-mtime s  ctime-mtime s
//	        layout: kind 1 byte  copies 1 byte  node u  chunk size u  width u  epoch u
//	        parent u  length u  text
//
//	entry   ino 8 bytes big endian  mode u
//
// The text of a symbolic link's inode is its target. The parent and the text of
// a directory's inode are the directory and the name of the entry that names
// it, as far as this node was told; they are a hint for Rename, which checks
// them, and are 0 and "" for all other inodes. A value with a byte too many or
// too few is damaged: EIO.
//
// # Durability
//
// An operation that was acknowledged has been written to the log file, so it
// survives the death of the daemon. It survives the death of the machine only
// after Sync: the data lives as long as the job, and a node that died does not
// come back in it. Config.Sync makes every operation wait for the disk.
// Counters are reserved in blocks, on the disk, before the first of a block is
// used; so an inode number is never used twice, whatever is lost.
//
// # Locks
//
// Reads take no lock but the first. The order is:
//
//	Store.closeMu         shared by every operation, exclusive in Close
//	  Store.moveMu        a directory moves to another directory
//	    Store.locks       striped by inode; all that an operation needs are taken at once, in stripe order
//	      counter.mu      the next inode number
package pebblestore
