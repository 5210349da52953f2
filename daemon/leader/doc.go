// Package leader is the duties of the daemon that leads the control group: it hears the
// reports of all nodes and turns them into proposals.
//
//	reports ──▶ Record ──▶ duties ──▶ proposals
//	  a node that reports ready         becomes Up
//	  a node that is silent             becomes Down
//	  a dataset that all nodes have     becomes Filling, then Sealed
//	  a lost coordinator's dataset      gets another one, or has failed
//	  a job whose nodes are all done    is closing
//
// What moves a dataset on does not wait for the next periodic report: a report with a
// relevant change wakes the leader, and the leader broadcasts a change to the nodes outside
// the group, which then report (Broadcast): a dataset that has advanced, a complete job, a lost
// node. Changes of nodes are proposed together: one proposal and one epoch for all that
// reported ready since the last one. While a job starts, the leader waits a moment for more
// nodes (joinPause), since each change of the map is sent to all of them.
//
// Invariants: the duties are a function of the view, the reports and the time alone. A new
// leader starts with an empty memory, and gives every node the time of a full silence
// before it declares one down; one that is elected again for the next term goes on with
// what it knows.
//
// Locks: Leader.mu is a leaf; it is not held across a proposal or a call.
//
// The package does not know how reports travel, nor what a node does with the view.
package leader
