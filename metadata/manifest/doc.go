// Package manifest is the table of contents of a sealed dataset: every path with its attributes, its checksum and the
// location of its bytes.
//
// Each node records parts while it stages; Build merges them into the manifest, a stream of records in an order that
// each node can turn into a sorted table without help (Ingest). The table then answers all metadata requests for the
// dataset as a metadata.Store, without the network.
//
// Invariants:
//   - A manifest is a tree: no path twice, no path through anything but a directory, no hard link to nothing, no "."
//     or "..", no device nodes. Build refuses anything else, or leaves it out (BuildConfig.Leave).
//   - Streams are checked block by block, and nothing in them is trusted.
//   - A table never changes: all changes fail with EROFS.
//   - Memory is bounded, whatever the size of the manifest (Scratch.Bound); only hard links are in memory.
//
// Lock order: sharedFile.mu is a leaf.
//
// The package knows no network and no other node, and not how a source is read.
//
// # Stream
//
// Parts and manifests have the same encoding. Fixed numbers are big endian, "u" is an unsigned varint, "s" a zigzag
// varint (encoding/binary).
//
//	magic     8 bytes  "BIVMAN" 00 02
//	block     length 4 bytes (1 to 262144), CRC-32C of the payload 4 bytes, payload
//	...
//	end       00 00 00 00, CRC-32C of the next field 4 bytes, number of records 8 bytes
//
// Nothing follows the end. A payload is whole records:
//
//	flags u    1 target, 2 hard link, 4 checksum, 8 origin, 16 the origin's path is the record's,
//	           32 the origin has headers to check, 64 it is in a zip archive,
//	           128 it is sparse, and its headers tell how, 256 its chunks have checksums
//	path       shared u, length u, bytes: shared bytes of the path before it in the block come first
//	ino        8 bytes
//	attr       below
//	target     length u, bytes     if flagged
//	hard link  length u, bytes     if flagged
//	checksum   16 bytes            if flagged: xxh3-128, or "crc-32c of b" and 4 bytes of CRC-32C
//	origin     source u  offset u  head u, digest 8 bytes (with 32)  span u, packed u, method u (with 64)
//	           length u, path bytes (not with 16)  if flagged
//	chunks     count u (to 16384), CRC-32C 4 bytes each  if flagged; of a striped file, or an overflowed one with a chunk size
//
//	attr       flags 1 byte: 1 links, 2 atime, 4 ctime, 8 nanoseconds, 16 local, 32 layout, 64 overflow
//	           mode u  uid u  gid u  size u  mtime s
//	           atime-mtime s       if flagged; else it is mtime
//	           ctime-mtime s       if flagged; else it is mtime
//	           links u             if flagged; else 1
//	           node u              if local
//	           copies 1 byte  chunk size u  width u  epoch u   if layout
//
// Times are seconds, or nanoseconds if flagged; differences of nanoseconds are modulo 2^64. The attr has no ino.
//
// # Order of a manifest
//
// The dataset's root comes first, with the path "". Records are sorted by depth, and within a depth by path, compared
// name by name as bytes; so the entries of a directory are contiguous and sorted, and directories follow the order of
// their parents. Directories are numbered in that order: SealedIno(ds, DirPart, n). There are no hard-link records:
// each name of a file has its ino and attributes.
//
// # Table
//
//	key 01 dir seq(4) name        value: part u, seq u, attr     an entry
//	key 02 part(2) seq(4)         value: attr, flags 1 byte: 1 target, 4 checksum, 8 origin, 32 its headers, 64 in a zip archive, 128 sparse; origin; target (the rest but the checksum); checksum 16 bytes
//	key 02 part(2) seq(4) 00      value: CRC-32C 4 bytes for each chunk; of a striped file, or an overflowed one with a chunk size, if they are known
//	key 03                        value: JSON of the Summary with version and dataset
//
// All entries of a directory are contiguous and carry their attributes, so a listing is one scan and a look-up is one
// read.
package manifest
