// Package raftstore is the job's control group: a few members that agree on a cluster.View by Raft. Its central idea is
// that they agree on one small value, which Commands advance through a pure function (Apply); so a member that restarts
// or joins late gets the same View by replaying the same log.
//
// It never handles files: neither their data, nor their metadata, nor reads. It does not decide either: the leader's
// daemon detects that a node is Down and proposes it. Membership is fixed when the job starts.
//
// # Storage
//
// The log and the stable store are one BoltDB file, log, which is synced to the disk before Raft acts on an entry.
// Snapshots are files, snapshots/, of the View as JSON; the last two are kept. Both are hashicorp's own stores.
//
// # Streams
//
// Members communicate through hashicorp/raft's own transport, over streams that the daemon opens and authenticates:
// Config.Dial opens one, Group.Accept takes one. A member's address is its node's id in decimal.
//
// # Locks
//
//	Group.mu
//	board.mu
//	streams.mu
//
// None is taken while another is held.
package raftstore
