// Package daemon is a node's server: it wires the parts of a daemon together, opens the stores, answers the other
// nodes, joins the control plane, and reports to its keeper. A node knows its job from one job file and reaches the
// other nodes by address alone: no shared directory, no ssh.
//
//	node      the interfaces that every part uses; this package implements them
//	home      the live realm: leases, open files, locks, transactions
//	dataset   datasets after their bytes arrive: manifests, serving, verify and repair
//	ingest    stage-ins: coordinator, participants, standby, takeover
//	partner   copies of homes, for copies=2; stands in for lost homes
//	stageout  copies scratch to the job's targets
//	tasks     long work on other nodes
//	leader    the duties of the control group's leader
//	member    this node in the control plane: reports, the view, proposals
//	job       the job file
//
// It does not know mounts or clients; the program passes the functions that it needs from them.
//
// # The control plane
//
// The first three hosts (one, if there are fewer than three) form the Raft group. Every node, including these, sends a
// report to the group's leader a few times a second; the reply has the view (map and datasets) if the sender's is
// older. Package leader turns reports into proposals. No read or write of a file touches the control plane.
//
// # Orphans
//
// A daemon that is killed leaves things behind. Most are found by a record: an orphan by its own, a transaction by its
// intent or decision, a shard by its home's. A sweep removes the rest when a daemon starts on an old store, and after
// another daemon has restarted: data of removed files, and inodes without a name on any node.
//
// # Memory
//
// All readers and writers together take at most (Memory, MemoryOf)
//
//	128 MiB   the program: code, stacks, workers, open files, garbage
//	 99 MiB   metadata: caches and memtables of the Pebble stores
//	256 MiB   requests and replies with file data; less if Config.Memory says so
//	 64 MiB   checksums of scratch data; a quarter of the line above
//	504 KiB   for each other node: connections
//	336 MiB   for each dataset that is staged: 64 of pieces, 256 of overflow that is
//	          read through, 16 of names that are sorted
//	201 MiB   the mount: 512 KiB for each request of the kernel (package mount), and
//	          32 of write-back buffers (package fsclient)
//	132 MiB   the covers and kernel views of datasets, if they are made
//
// Not included: replies to listings of large directories while they are built, a decompressor's window, the hard links
// of a dataset while its manifest is built, the entries of a directory or a zip archive while it is scanned, and some
// 100 bytes for each piece that a node has yet to fetch.
//
// # Locks
//
//	meter.mu   the samples of the traffic meter
//
// None is held while another is taken, nor across a remote call. The parts have their own locks; see their package
// comments.
package daemon
