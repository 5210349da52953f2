// Package scan lists the content of a source without reading its files, and plans how nodes read it.
//
// Run is tried first. It walks a directory, reads the central directory of zip archives, or reads the headers of tars
// in parallel segments, and writes the records of the dataset. So the manifest can be published before a byte of data
// is copied, and the fill fetches the files. If that is not possible or not worthwhile, Run returns nil, and MakePlan
// divides the source among the nodes for a single pass.
//
//	Run ──▶ tree          a directory: walk, selection
//	    ├─▶ inArchives    kinds, indexes of earlier jobs, central directories, mean size of members
//	    │     └─▶ headerScanner   segments: each begins at the first block that looks like a header; join proves that
//	    │     └─▶ unnest          tars in a tar
//	    └─▶ record        owners, overflow (by a hash of the paths), room of each node; records
//	MakePlan ──▶ regions of a tar, members of a zip, whole archives, parts of a directory
//
// # Invariants
//
// A source that cannot fit is refused before a byte is copied, with the need, the room and the remedy. A segment counts
// only if the one before ends where it begins; otherwise it is rescanned from there. Items of a large tar are in spools
// on disk, not in memory. An index is used only if it belongs to the user, to the owner of the archive or to root, and
// matches the archive; its entry for a member is compared with the member's headers when these are read.
//
// # Locks
//
// No lock is held across a read. The lock of a stagein.Selection is taken alone.
//
// The package must not know how files are stored: no object, no Target, no journal.
package scan
