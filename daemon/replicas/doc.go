// Package replicas keeps copies of other nodes' files of sealed datasets in spare room. Its one idea is that readers
// find a replica without asking: the map decides which nodes hold replicas of a file (cluster.Map.Replicas), every node
// makes its replicas in an order known to all (cluster.Map.ReplicaPosition), and each node reports its progress (Mark).
// A mark is a hint: a node that lacks the file returns EAGAIN at once, and the reader tries another node.
//
// With replicas=spare and an access plan, a node first makes replicas of the files that it reads most often
// (preference). All nodes compute how often each node reads each file, so a mark is enough here, too. If the plan
// arrives when the node is full, it gives up replicas of files that it reads less often (trade); another plan can bring
// them back. The order is final once scratch has taken room back.
//
//	Run       makes replicas in the background, from their owners, never from the source
//	Has, Find reads a replica as a local file
//	Where     returns the nodes with a replica of a file
//	Adopt     makes a piece that falls to this node after its owner was lost from a replica
//	GiveBack  frees room for scratch, beginning with the last replicas
//	Verify    removes a replica that does not match its checksum
//
// # Invariants
//
//   - A replica appears atomically (chunkstore.Store.Rename), after its bytes were compared with the checksum
//     that the owner recorded at stage-in.
//   - Making replicas yields to readers (pacer): while this node reads, it transfers at most two pieces at a time, and
//     it pauses transfers from an owner that has become slow or does not answer.
//   - Replicas take only free room, and leave 1/keepFree of the node's room free.
//   - A whole replica has the same object as the node's own copy of the file. A removal has ended before the node
//     stores its own copy, and nothing removes that copy: Adopt takes over a present replica; others obey MayStore.
//   - A replica that was given back to scratch is not made again: a reader may still have the old copy
//     open, and scratch that grew once grows again.
//
// A file that is whole on one node has one replica, under its inode number. A striped file has one replica per chunk,
// in a separate object whose number follows from the manifest: it is made and removed as a whole, however many chunks
// of the file this node stores as its own. Readers ask for the chunk at the offset where a stand-in for its owner
// stores it (datapath.StandIn); Find translates the offset, and Adopt copies the bytes there. A restarted daemon
// compares the replicas that it finds with the owners' checksums.
//
// # Locks
//
//	removing   serializes removals of replica objects, by GiveBack or Verify
//	  mu       taken last, except for the locks of Config.Stored; not held across I/O
package replicas
