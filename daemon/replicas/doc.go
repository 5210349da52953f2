// Package replicas keeps copies of other nodes' files of sealed datasets in room that nothing
// else needs. Its one idea is that no node has to be asked what it has: which nodes are to
// have a file follows from the map (cluster.Map.Replicas), every node makes its replicas in
// the same order (cluster.Map.ReplicaPosition), and each says with its reports how far it is
// (Mark). A mark is a hint: a node that lacks the file after all says so at once (EAGAIN), and
// the reader turns to another.
//
//	Run       makes replicas in the background, from their owners, never from the source
//	Has       a replica is read as a local file
//	Where     the nodes that have a replica of a file
//	Adopt     a file that falls to this node, since its owner was lost, comes from a replica
//	GiveBack  room for scratch: the last replicas go first
//	Verify    a replica that differs from what was staged is removed
//
// # Invariants
//
//   - A replica appears whole or not at all (chunkstore.Store.Rename), after its bytes were
//     compared with the checksum that the owner recorded when it staged them.
//   - A replica takes only room that is free, and leaves keepFree of it.
//   - What was given back is not made again: whoever has opened its file may go on reading the
//     old one, and scratch that grew once grows again.
//
// Files in stripes have no replicas. A daemon that starts again compares the replicas that it
// finds with the owners' checksums.
//
// # Locks
//
//	giving   one GiveBack at a time
//	  mu     taken last, and not held across I/O
package replicas
