// Package tar parses the headers of tar archives, and reads and writes their indexes.
//
// A state machine parses headers one block at a time (Parser), because an archive is read from any 512-byte boundary:
// by a reader that continues another's work, or that speculates that a member begins there.
//
// It understands ustar, V7, star and GNU headers with long names and long links, and PAX extended headers; regular
// files, also sparse ones, directories, hard and symbolic links. It refuses, with the member and its offset: device
// nodes and FIFOs, parts of multi-volume or incremental archives, absolute paths and paths with "..", and names that
// no filesystem accepts. It ignores owners, extended attributes, access and change times, and comments.
//
// Invariants:
//   - What a Parser keeps of one member is bounded (MaxExtended, MaxHeaders).
//   - An index is used only for the archive that it was made of (IndexKey), and a member's headers are compared
//     with it when the member is read (CheckHead).
//
// The package knows nothing of compression and writes nothing but an index.
package tar
