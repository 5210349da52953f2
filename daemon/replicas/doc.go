// Package replicas keeps copies of other nodes' files of sealed datasets in spare room. Its one
// idea is that readers find a replica without asking: the map decides which nodes hold replicas
// of a file (cluster.Map.Replicas), every node makes its replicas in an order that all know
// (cluster.Map.ReplicaPosition), and each reports its progress (Mark). A mark is a hint: a node
// that lacks the file answers EAGAIN at once, and the reader tries another.
//
// With replicas=spare and an access plan, a node makes replicas of the files first that it reads most often (preference). All
// nodes compute how often each node reads each file, so a mark is enough here, too. If the plan comes when the node is full,
// replicas of files that it reads less often leave (trade); another plan can bring them back. The order then stays once
// scratch has taken room back.
//
//	Run       makes replicas in the background, from their owners, never from the source
//	Has, Find a replica is read as a local file
//	Where     the nodes that have a replica of a file
//	Adopt     a piece that falls to this node, since its owner was lost, comes from a replica
//	GiveBack  room for scratch: the last replicas go first
//	Verify    removes a replica that does not match its checksum
//
// # Invariants
//
//   - A replica appears whole or not at all (chunkstore.Store.Rename), after its bytes were
//     compared with the checksum that the owner recorded when it staged them.
//   - Making replicas yields to readers (pacer): beside reads of this node it transfers at most two pieces at a time, and an
//     owner whose transfers have become slow, or that does not answer, is left alone for a while.
//   - Replicas take only free room, and leave 1/keepFree of the node's room free.
//   - A whole replica's object is also that of the node's own file. A removal is over before the node stores its own there,
//     and nothing removes that: where a replica is, Adopt takes it over, and others do not store the file (MayStore).
//   - A replica that was given back to scratch is not made again: a reader may still have the old copy
//     open, and scratch that grew once grows again.
//
// A file that is whole on one node has one replica, under its inode number. Of a striped file each chunk
// has one, in an object of its own, whose number follows from the manifest: it comes and goes
// whole, however many chunks of the file are on this node as its own. Readers ask for the chunk at the offset where
// a stand-in for its owner has it (datapath.StandIn); Find translates. Adopt copies the bytes there. A daemon that
// starts again compares the replicas that it finds with the owners' checksums.
//
// # Locks
//
//	removing   one removal of objects of replicas at a time, by GiveBack or Verify
//	  mu       taken last, but for those of Config.Stored, and not held across I/O
package replicas
