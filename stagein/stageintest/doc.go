// Package stageintest holds the helpers that the tests of stage-in share: a source filesystem in memory, the stores of
// all nodes in memory, writers of every archive format, and plain readers ("twins") that compute the expected dataset.
//
// It does not know how a dataset is staged, so the tests inside every package under stagein can import it.
package stageintest
