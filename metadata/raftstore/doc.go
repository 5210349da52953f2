// Package raftstore is the job's control group: up to a few members that agree
// on a cluster.View by Raft. Its one idea is that what is agreed is one small
// value, which a pure function (Apply) moves forward by Commands; so a member
// that restarts, or comes late, gets the same View by replaying the same log.
//
// It never sees a file: not its data, not its metadata, not a read of it. It
// does not decide either: that a node is Down is for the leader's daemon to
// find out and to propose. Membership is fixed when the job starts.
//
// # Storage
//
// Log, stable store and snapshots are in one Pebble store, synced to the disk
// before Raft acts on them. Numbers are big-endian.
//
//	key                         value
//	'l' index:8                 a log entry: version:1 = 1, term:8, type:1, appended:8 (Unix nanoseconds, 0 is
//	                            none), extensions length:4, extensions, data
//	's' name                    a value of the stable store; integers are 8 bytes
//	'm' sequence:8              a snapshot's raft.SnapshotMeta as JSON
//	'v' sequence:8              the snapshot itself: the View as JSON
//
// A snapshot's two records are written in one batch, so that there are no
// halves; of snapshots the last two are kept. Sequence numbers rise.
//
// # Streams
//
// Members talk through hashicorp/raft's own transport over streams that others
// make and have authenticated: Config.Dial opens one, Group.Accept takes one.
// A member's address is its node's id in decimal.
//
// # Locks
//
//	Group.mu
//	board.mu
//	streams.mu
//	snapStore.mu
//
// None is taken while another is held.
package raftstore
