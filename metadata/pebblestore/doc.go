// Package pebblestore keeps one node's part of the namespace in a Pebble store: the live
// inodes whose home is this node, the entries of the live directories among them, and one
// raw sorted table for the manifest of each sealed dataset. Every operation is one atomic
// batch: after a crash it has happened or it has not.
//
// It must not change a record of another home: operations of metadata.Store that would need to do so return EXDEV.
// Package txn runs those as transactions, in which the store is a metadata.Participant and the coordinator's store.
//
// # Keys
//
// Numbers in keys are big endian, so that byte order is number order.
//
//	01 'v'              version of this schema          value: 01
//	01 's'              the node of the store           value: node 2 bytes
//	01 'c'              counter limit                   value: 8 bytes; every counter below it may be in use
//	01 'p'              the partner that a home is bound to (package mirror)     value: raw
//	01 'm'              in a copy: how far it is        value: raw
//	02 ino(8)           a live inode                    value: inode, below
//	03 dir(8) name      an entry of a live directory    value: entry, below
//	04 ino(8)           an orphan: a live inode without links, not yet reaped   value: 01 if it may get a name, else empty
//	05 transaction(8)   an intent: the edits of a prepared transaction       value: intent, below
//	06 transaction(8)   a decision of this node, until all have executed it  value: participants, 2 bytes each
//	07 dir(8)           a sharded directory with a shard here                value: shards, below
//	08 dir(8)           its attributes in the shard here, if its home is another node  value: inode
//	09 dir(8) node(2)   at its home: the last report of the shard of node    value: subdirectories u
//	0a ino(8) name      an extended attribute           value: raw
//	10 dataset(2) key   the raw table of a dataset      value: raw, of its owner
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
//	shards  01  state 1 byte (1 filling, 2 active, 3 frozen)  generation u  freeze u
//	        epoch u  seed 8 bytes big endian  nodes u  node u...
//
//	entry   ino 8 bytes big endian  mode u
//
//	intent  01  flags 1 byte: 1 is given up   count u  edits:
//	        kind 1 byte  dir u  length u  name  ino u  mode u  to dir u  length u  to name
//	        old ino of the entry u  time s  0 or 1 and: mode u  uid u  gid u  layout
//
// The text of a symbolic link's inode is its target. The parent and the text of a directory's inode name its entry; for
// other inodes and the root they are 0 and "". "extended attributes" is the size of the list of their names; 0 saves a
// lookup when the inode is removed. A value with a byte too many or too few is damaged: EIO.
//
// # Transactions
//
// Prepare, or Hold on the coordinator, applies the edits to a batch that is discarded, and takes the locks that they
// need: exclusive locks on changed names, shared locks on their directories, which must not be removed, and exclusive
// locks on inodes that move, are removed or change their link count. A participant records the edits as an intent;
// Commit applies them and removes the intent in one batch. Open takes the locks of recorded intents again.
//
// Operations that find a lock taken wait for its release, or for their context, and start again. A read checks the
// locks before it reads the record, so it never returns the old state after another read has returned the new one.
// Setattr does not wait, nor do reads of the attributes of a directory whose names change.
//
// # Sharded directories
//
// This node has the entries whose hash selects it; for others it returns metadata.Redirect. The inode stays at the
// home; each shard has a copy of mode, owner, group and layout (its atime is their ctime), and counts links and mtime
// until it reports. Split and Merge are the home's side, metadata.Shards is the side of the other nodes; package shard
// orders the steps. During a split or merge, changes return metadata.Resharding. Entries are counted in memory, from 0
// after a start; when the count reaches Config.ShardAt, the stored entries are counted.
//
// # Durability
//
// An acknowledged operation is in the log file: it survives the death of the daemon. It survives the death of the
// machine only after Sync, because a dead node does not return to the job. Config.Sync makes every operation wait for
// the disk. Inode numbers are reserved in blocks on the disk, so that no number is ever reused, whatever is lost.
//
// # Locks
//
// Reads take no stripe. No stripe is held while an operation waits for a transaction. The order is:
//
//	Store.closeMu         shared by every operation, exclusive in Close
//	  preparedTx.mu       the end of a transaction
//	    Store.locks       striped by inode; an operation takes all its stripes at once, in order
//	      Store.mirrorMu  shared by every batch, which may wait for the partner; exclusive to set the mirror
//	      txLocks.mu      locks of transactions
//	      counter.mu      the next inode number
//	      shardedDirs.mu  the table of sharded directories and counts
//	      dirSet.mu       directories for package shard
package pebblestore
