// Package writeback buffers what applications write, so that a writer does not wait
// for the network. A write that continues where the last write of its file on this
// node ended is acknowledged when it is in the file's Buffer. All others are written
// through by the caller.
//
// Its one idea is that buffered bytes never overlap: a write that does not continue
// the buffered ones waits until these have arrived, so batches can arrive in any
// order.
//
//	Write ──> Buffer.data ──full, Drain, or half a second old──> batch ──> nodes
//	          512 KiB                                            at most 4 a file
//
// Invariants:
//
//   - Whatever depends on buffered bytes drains the Buffer first: reads, attributes,
//     sizes, writes through, Flush, Sync, and the end of any lock on this node.
//   - A batch that fails is reported by the next calls of the descriptors that wrote
//     it, once each, and by Sync to every descriptor that was open then, also if a
//     close has reported it before (Reporter).
//   - Buffered bytes find room: a client claims at most mayClaim of the free space
//     that a node has reported, and only if the node keeps more than all clients of
//     the job can have buffered and claimed. On a node with less, writes go through,
//     so that ENOSPC is the result of the write itself.
//   - All files of a client buffer at most Memory. A writer that finds no buffer
//     writes through.
//
// Appends have one place for a whole batch. They are buffered only while no other
// node has the file open (File.Alone): before an open there succeeds, they are sent.
//
// The package does not know where the bytes of a file are kept, nor the file's home:
// it writes through File, and has files flushed through Client.
//
// Lock order:
//
//	Buffer.writer      held while waiting for batches
//	  Buffer.mu
//	    Pool.mu
//	  freeSpace.mu
package writeback
