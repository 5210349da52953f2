// Package stageintest holds what the tests of stage-in share: a source
// filesystem in memory, the stores of all nodes in memory, writers of every
// archive format, and plain readers ("twins") that say what a dataset must look
// like.
//
// It knows nothing of how a dataset is staged, so the tests inside every package
// under stagein can import it.
package stageintest
