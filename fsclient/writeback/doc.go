// Package writeback buffers the writes of applications, so that a writer does not wait for the network. A write that
// continues the last write of its file on this node is acknowledged when it is in the file's Buffer. The caller writes
// all others through.
//
// Its one idea is that buffered bytes never overlap: a write that does not continue the buffered ones waits until these
// have arrived, so batches can arrive in any order.
//
//	Write ──> Buffer.data ──full, Drain, or half a second old──> batch ──> nodes
//	          512 KiB                                            at most 4 a file
//
// Invariants:
//
//   - Every operation that depends on buffered bytes drains the Buffer first: reads, attributes,
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
// A whole batch of appends gets one range. Appends are buffered only while no other node has the file open
// (File.Alone): they are sent before an open by another node succeeds.
//
// The package does not know where the bytes of a file are kept, nor the file's home: it writes through File, and has
// files flushed through Client.
//
// Lock order:
//
//	Buffer.writer      held while waiting for batches
//	  Buffer.mu
//	    Pool.mu
//	  freeSpace.mu
package writeback
