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
// The log and the stable store are a BoltDB file, log, synced to the disk before
// Raft acts on them. Snapshots are files, snapshots/, of the View as JSON; the
// last two are kept. Both are hashicorp's own stores.
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
//
// None is taken while another is held.
package raftstore
