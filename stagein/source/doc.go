// Package source describes the raw material of datasets: the filesystem they are read from (FS, File, OS), the kinds of
// source (Kind), its entries (Item), and the buffers for its bytes (Pool, Piece, Region).
//
//	walk    what lies at a path: detection of the kind, patterns, lists, directory trees
//	tar     headers, sparse maps, and the index of a tar
//	zip     the central directory and local headers of a zip archive
//	unpack  decoders of compressed tars
//
// Invariants:
//   - All bytes of a source are read through FS, so that a test or a report can count them.
//   - A Pool bounds the memory of all reads: a buffer is taken before bytes are read into it.
//   - A Piece is reference-counted; its buffer returns to the pool with the last Release.
//   - The path of an Item is relative and clean (CleanPath); it never leaves the dataset.
//
// Lock order: none. Pool.mu is a leaf.
//
// The package writes nothing and knows no archive format, no node and no dataset.
package source
