// Package home is a node's server for its part of the live realm: the inodes and directory entries whose home the node
// is. The node's own client calls it directly, the other nodes through the handlers; both see the same Server.
//
//	        own client                     other nodes
//	            │ direct calls                  │ RPC (Handlers)
//	┌───────────▼───────────────────────────────▼──────────┐
//	│ leased    grants leases on names, inodes; revokes   │  leases.go changes.go
//	│           them before a change is acknowledged       │
//	├──────────────────────────────────────────────────────┤
//	│ store     open files and locks       metadata/opens  │  opens.go locks.go
//	│           transactions over homes    metadata/txn    │  txn.go
//	│           shards of wide directories metadata/shard  │  wide.go
//	├──────────────────────────────────────────────────────┤
//	│ records   metadata/pebblestore       extents of data │  xattr.go extents.go
//	└──────────────────────────────────────────────────────┘
//	  in the background: sweep (leftovers of killed daemons), orphans, check
//
// # Invariants
//
//   - A name or inode changes only through a method of leased. When the method returns, no
//     other node holds a lease on the changed names and inodes.
//   - An inode exists before its first object, and its number is never reused: an object
//     whose home does not know the inode is a leftover.
//   - A file without a name is removed when no node has it open and all nodes that were up
//     when the home started have reported their open files.
//   - A wide directory that blocks a transaction or a removal is merged first.
//
// # Leftovers
//
// A daemon that is killed, or whose node is lost, leaves things behind. Most are found by a record: an orphan by its
// own, a transaction by its intent or decision, a shard by its home's. A sweep removes the rest, when a daemon starts
// on an old store and after another daemon has restarted: objects of removed files, and inodes without a name on any
// node.
//
// # Locks
//
//	Server.mu  the runs of the nodes' clients, the counts of the sweep
//
// It is not held while another lock is taken, nor across a remote call.
//
// The package must not know datasets, stage-in, mounts, or the control socket.
package home
