// Package pebblestore keeps one node's part of the namespace in a Pebble
// store: the live inodes whose home is this node, the entries of the live
// directories among them, and one raw sorted table for the manifest of each
// sealed dataset. Its one idea is that every operation is one atomic batch, so
// that after a crash an operation is there or it is not.
//
// It never changes a record whose home is elsewhere. The operations of
// metadata.Store that would need that answer EXDEV; they are done as
// transactions (package txn), of which the store keeps its own side: as a
// participant (metadata.Participant) and as the store of the coordinator.
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
//	05 transaction(8)   an intent: edits that are promised to another node   value: intent, below
//	06 transaction(8)   a decision of this node that is not known to all     value: who takes part, 2 bytes each
//	07 dir(8)           a sharded directory with a shard here   value: split, below
//	08 dir(8)           its inode as the shard here has it, if its home is elsewhere  value: inode
//	09 dir(8) node(2)   at the home of a sharded directory: what the shard of node was
//	                    last heard to have      value: subdirectories u
//	0a ino(8) name      an extended attribute           value: raw
//	10 dataset(2) key   the raw table of a dataset      value: raw; the table's owner knows what they mean
//
// # Values
//
// "u" is an unsigned varint, "s" a zigzag varint (encoding/binary).
//
//	inode   01  mode u  nlink u  uid u  gid u  rdev u  size u
//	        mtime s  atime-mtime s  ctime-mtime s
//	        layout: kind 1 byte  copies 1 byte  node u  chunk size u  width u  epoch u
//	        extended attributes u  parent u  length u  text
//
//	split  01  state 1 byte (1 filling, 2 open, 3 frozen)  generation u  freeze u
//	        epoch u  seed 8 bytes big endian  nodes u  node u...
//
//	entry   ino 8 bytes big endian  mode u
//
//	intent  01  flags 1 byte: 1 is given up  count u  edits:
//	        kind 1 byte  dir u  length u  name  ino u  mode u  to dir u  length u  to name
//	        ino that the entry named u  time s  0 or 1 and: mode u  uid u  gid u  layout
//
// The text of a symbolic link's inode is its target. The parent and the text of
// a directory's inode are the directory and the name of the entry that names
// it, wherever that is; they are 0 and "" for all other inodes, and for the
// root. The number of a transaction comes from the counter of inode numbers. The
// number of an inode's extended attributes is that of the bytes that their names
// take in a list, each with one more; where it is 0 no key of them is looked for
// when the inode goes. A value with a byte too many or too few is damaged: EIO.
//
// # Transactions
//
// A promise (Prepare, or Hold for the coordinator) checks the edits by doing
// them in a batch that is thrown away, and holds what they need: the names that
// change, alone; the directories of these names, which may change otherwise,
// but stay; inodes that get or lose a link, go or move, alone. What is promised
// to another node is written down as an intent; Commit does it and forgets the
// intent in one batch. Open holds again what the intents of the last run
// promise.
//
// Operations and reads that meet what is held wait until the transaction has
// ended or their context has, and begin anew. A read looks first at what is
// held and then at the record: so it is before a transaction that begins in
// between, and never sees the old state after somebody can have seen the new
// one. Setattr does not wait, as what it changes no transaction reads; neither
// do reads of a directory's attributes for the names in it.
//
// # Sharded directories
//
// The entries of a directory that has a split are in shards: here are those
// whose name the split's hash gives to this node, and what is asked for
// another is answered with metadata.Redirect. The inode of the directory is at
// its home; the shard elsewhere has a record of its own, of which the mode,
// the owner, the group and the layout are copies, the atime is the ctime of what
// was copied, and the links and the mtime are those that are due to the shard.
// Spreading and Merging are the home's steps from one state to the other, the
// methods of metadata.Shards those of the other nodes; package shard puts them
// in order. While they last, changes of the entries are answered with
// metadata.Resharding.
//
// How many entries a directory has is not kept: what comes and goes is counted
// in memory, from 0 at a start, and at Config.ShardAt the entries are counted.
//
// What is promised of the entries of a directory keeps it from being split or
// folded until the transaction has ended; while that is about to happen, nothing
// more is promised.
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
// Reads take no stripe. Nobody waits for a transaction with any of them. The
// order is:
//
//	Store.closeMu         shared by every operation, exclusive in Close
//	  promise.mu          the end of a transaction
//	    Store.locks       striped by inode; all that an operation needs are taken at once, in stripe order
//	      promises.mu     what transactions hold
//	      counter.mu      the next inode number
//	      shardedDirs.mu     the table of sharded directories, gates and counts
//	      dirSet.mu       the directories that package shard should look at
package pebblestore
