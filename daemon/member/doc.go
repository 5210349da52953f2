// Package member is a node's membership in the control plane: it reports to the leader of the control group, keeps the
// newest view of the job, and proposes changes to it. On the first three hosts it is also a member of the Raft group.
//
//	report  ──▶  leader (package leader)  ──▶  proposals (package raftstore)
//	view    ◀──  delta of the reply
//
// A daemon embeds its Member and thereby implements node.Registry. The rest of the daemon adds its state to reports
// (Config.Fill) and receives replies (Config.Heard). The package knows neither stores nor the network:
// integration/simulate runs thousands of members on a virtual clock.
//
// # Invariants
//
//   - The version of the view never decreases.
//   - When Propose returns without an error, the view of this node includes the change.
//
// # Locks
//
//	Member.mu  the view and its subscribers, the leader that this node knows
//
// It is not held across a call, nor while another lock is taken.
package member
