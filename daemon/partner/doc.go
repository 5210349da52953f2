// Package partner keeps a copy of this node's records on its partner, and copies of other nodes' records here; when
// one of them is lost for good, it opens the copy and stands in for it. The protocol is package metadata/mirror;
// this package does its I/O:
//
//	sender.go     brings each batch of a home to the partner, binds the home, has the map record it: of this node's
//	              home, and of each that this node stands in for
//	want.go       waits for copies; asks whether the partner still has its copy; passes over nodes without room
//	wiped.go      asks the leader, before the home serves, whether its records were lost
//	receiver.go   the copies of other homes: one store each, a second one while a new copy is made
//	standin.go    opens a copy as a home, answers the calls for it, calls others in its place; closes and removes it
//	              when another node has taken over
//	caller.go     the way to a home: its node, or its partner
//
// All of it rests until the job's view is Copied. A call for a home that is replaced, and one from it, goes inside of
// a StandInReq, which names the home that it is for, and the home or node that it is from.
//
// # Locks
//
//	Sender.mu      the mirror.Home; a batch waits for its turn on a condition of it
//	Receiver.mu    the table of homes; never held while one of them is
//	received.mu    one home's copies, while a message is applied
//	Partner.mu     the open stand-ins
package partner
