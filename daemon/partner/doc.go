// Package partner keeps a copy of this node's records on its partner, and copies of other nodes' records here; when one
// of them is lost for good, it opens the copy and stands in for the node. The protocol is package metadata/mirror; this
// package does its I/O:
//
//	sender.go     sends each batch of a home to the partner, binds the home, has the map record the partner: for this
//	              node's home, and for each home that this node stands in for
//	want.go       waits for copies; checks whether the partner still has its copy; skips nodes without room
//	wiped.go      asks the leader, before the home serves, whether its records were lost
//	receiver.go   the copies of other homes: one store each, a second one while a new copy is made
//	standin.go    opens a copy as a home, answers calls for it and makes calls in its place; closes and removes it
//	              when another node has taken over
//	caller.go     the route to a home: its node, or its partner
//
// All parts are idle until the job's view is Copied. A call to or from a replaced home travels inside a StandInReq,
// which names the target home and the calling home or node.
//
// # Locks
//
//	Sender.mu      the mirror.Home; a waiting batch uses a condition of it
//	Receiver.mu    the table of homes; never held while a received.mu is
//	received.mu    one home's copies, while a message is applied
//	Partner.mu     the open stand-ins
package partner
