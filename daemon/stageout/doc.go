// Package stageout copies directories of scratch to the job's targets. Each node copies its share of every directory;
// package stagein/stageout does the copying itself, through a client that the program provides (SetCopy).
//
//	background  while the job runs: files that are closed and settled
//	Final       at the job's end: all remaining files
//	All         on request: every node copies its share, and the caller waits
//
// Failures are summed up for each directory (Failures), reported to the leader of the control plane, and written to the
// job's output by exactly one node (Notifier). A file beside the job's output has the full list.
//
// Invariants: a node copies to one target from one goroutine at a time, since two would write the same temporary files.
// Nothing is removed from the target. A hung file system never delays the job's end beyond its deadline.
//
// Locks: Copier.mu and Notifier.mu are leaves; neither is held during a copy or a call to a node.
//
// The package knows neither mounts nor datasets.
package stageout
