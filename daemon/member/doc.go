// Package member is a node's membership in the control plane: it reports to the leader of the
// control group, keeps the newest view of the job, and proposes changes of it. On the first
// three hosts it is a member of the Raft group, too.
//
//	report  ──▶  leader (package leader)  ──▶  proposals (package raftstore)
//	view    ◀──  delta of the reply
//
// A daemon embeds its Member, which so is its node.Registry. The rest of the daemon gives it
// what a report says (Config.Fill) and hears what a reply says (Config.Heard). It knows neither
// stores nor the network: integration/simulate runs thousands of members on a virtual clock.
//
// # Invariants
//
//   - The version of the view never falls.
//   - When Propose returns without an error, the view of this node has the change.
//
// # Locks
//
//	Member.mu  the view and its subscribers, the leader that this node knows
//
// It is not held across a call, nor while another lock is taken.
package member
