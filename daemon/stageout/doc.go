// Package stageout copies directories of scratch to where the job wants them. Each
// node copies its share of every directory; package stagein/stageout does the
// copying itself, through a client that the program provides (SetCopy).
//
//	background  while the job runs, files that are closed and settled
//	Final       at the job's end, everything that is left
//	All         on request: every node copies its share, and the caller waits
//
// What cannot be copied is summed up for each directory (Failures), reported to the
// leader of the control plane, and told to the user in the job's output by exactly
// one node (Notifier). The full list is in a file beside the job's output.
//
// Invariants: a node copies to one target from one goroutine at a time, since two
// would write the same temporary files. Nothing is removed from the target. A file
// system that does not answer never delays the job's end beyond its deadline.
//
// Locks: Copier.mu and Notifier.mu are leaves; neither is held while files are
// copied or a node is called.
//
// The package knows neither mounts nor datasets.
package stageout
