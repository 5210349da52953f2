// Package stageout copies results from scratch to a directory that outlives the job.
//
// All nodes copy together without talking to each other: each walks the whole tree and copies the files and symbolic
// links whose path hashes to its index (Config.Self). Only files of two pieces or more are copied by several nodes; the
// node that owns such a file asks the others for pieces (Config.Help).
//
// Invariants:
//   - Under its own name a file in the target is the old one or the whole new
//     one. It is written under a temporary name, synced, read back and compared
//     with a checksum, given its mode and times, then renamed. Each writer has temporary
//     names of its own: nodes that saw different maps, and jobs with one target, may copy
//     one file at the same time.
//   - A run is idempotent: a file of the same size, mode and modification time
//     is not copied again, so an interrupted stage-out continues where it stopped.
//   - Nothing outside the target is touched, even if symbolic links are placed
//     in it meanwhile: all access goes through an os.Root.
//   - One failure does not stop the rest. Failures are counted, listed and
//     returned together.
//
// Locks: out.mu guards the result and the table of directories; Memory.mu is a
// leaf. Neither is held across a read or a write.
//
// The package must not know the daemon, the job, or how other nodes are reached.
package stageout
