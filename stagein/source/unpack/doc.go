// Package unpack decompresses tars: gzip, zstd, xz and bzip2, recognised by their first bytes, not by their names.
//
// One decoder decodes a file from its beginning, ahead of the reader. Further members, frames or streams, where the
// format allows them, continue the same tar. Other trailing bytes and checksum mismatches are damage (DamageError).
//
// Invariants:
//   - Output pieces come from the caller's Pool, and windows have at most MaxWindow, so memory is bounded.
//   - A panic of a decoder is an error of that file, not of the process.
//
// The package knows compressed bytes and offsets; it does not know what a tar contains.
package unpack
