// Package unpack decompresses tars: gzip, zstd, xz and bzip2, recognised by their first bytes and not by their names.
//
//	format  decoded in parallel                         restart points
//	gzip    members that are not large (bgzip)           members
//	zstd    frames that are not large (pzstd)            frames
//	xz      blocks                                       blocks
//	bzip2   no                                           none
//
// A file is cut into batches of whole parts, which workers decode ahead of the reader; the order of the output is that
// of the file. Where a part ends may be a guess (gzip): a batch is used only if the one before it ended exactly there,
// and anything else is decoded again serially. What the format allows to follow an end (more members, frames, streams)
// continues the same tar; anything else, or a checksum that differs, is damage (DamageError).
//
// Invariants:
//   - Output pieces come from the caller's Pool, and workers from Pool.Help, so memory is bounded.
//   - A panic of a decoder is an error of that file, not of the process.
//
// Lock order: pointList.mu is a leaf.
//
// The package knows compressed bytes and offsets; it does not know what a tar contains.
package unpack
