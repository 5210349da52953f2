// Package leader implements the duties of the daemon that leads the control group: it collects the reports of all nodes
// and turns them into proposals.
//
//	reports ──▶ Record ──▶ duties ──▶ proposals
//	  a node that reports ready         becomes Up
//	  a node that is silent             becomes Down
//	  a dataset that all nodes have     becomes Filling, then Sealed
//	  a lost coordinator's dataset      gets another one, or has failed
//	  a job whose nodes are all done    is closing
//
// A change that lets a dataset advance does not wait for the next periodic report: it wakes the leader. The leader
// broadcasts urgent changes of the view (a dataset that has advanced, a complete job, a lost node) to the nodes outside
// the group, which then report (Broadcast). Changes of nodes are proposed together: one proposal and one epoch for all
// that reported ready since the last one. While a job starts, the leader waits a moment for more nodes (joinPause),
// since each change of the map is sent to all of them.
//
// Invariants: the duties are a function of the view, the reports and the time alone. A new leader starts with an empty
// memory, and gives every node a full silence period before it declares one down. A leader that is elected again for
// the next term keeps its knowledge.
//
// Locks: Leader.mu is a leaf; it is not held across a proposal or a call.
//
// The package does not know how reports are transported, nor what a node does with the view.
package leader
