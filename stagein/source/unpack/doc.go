// Package unpack decompresses tars: gzip, zstd, xz and bzip2, recognised by their first bytes and not by their names.
//
// A file is decoded from its beginning by one decoder, ahead of the reader. What the format allows to follow an end (more
// members, frames, streams) continues the same tar; anything else, or a checksum that differs, is damage (DamageError).
//
// Invariants:
//   - Output pieces come from the caller's Pool, and windows have at most MaxWindow, so memory is bounded.
//   - A panic of a decoder is an error of that file, not of the process.
//
// The package knows compressed bytes and offsets; it does not know what a tar contains.
package unpack
