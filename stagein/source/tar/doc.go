// Package tar reads the headers of tar archives and keeps the index of one.
//
// Headers are parsed by a state machine that is given one block at a time (Group), because an archive is read from
// any 512-byte boundary: by a reader that continues another's work, or that speculates that a member begins there.
//
// It understands ustar, V7, star and GNU headers with long names and long links, and PAX extended headers; regular
// files, also sparse ones, directories, hard and symbolic links. It refuses, with the member and its offset: device
// nodes and FIFOs, parts of multi-volume or incremental archives, absolute paths and paths with "..", and names that
// no filesystem takes. It ignores owners, extended attributes, access and change times, and comments.
//
// Invariants:
//   - What a Group remembers of one member is bounded (MaxSpecial, MaxHeaders).
//   - An index is trusted only for the archive that it was made of (IndexKey), and a member's headers are compared
//     with it when the member is read (CheckHead).
//
// The package reads no file itself but an index, writes none, and knows nothing of compression.
package tar
