// Package stagein brings datasets onto the nodes of a job. All nodes read the source together, each byte of it once,
// and what is read goes to its owner at once. How a source is read depends on whether it can be known without being read.
//
// # Scan, then fill: a directory, a large zip, a tar of large members
//
//	coordinator      scan.Run: walk the tree, read the central directory, or read one header after another
//	     |              -> manifest (names, attributes, manifest.Origin of each file) -> published: the tree is visible
//	     v
//	every node       fill.Fill: runs of 4 MiB of an archive, in the order of the fill
//	     |              offer  -> owners: "I read these pieces"     owners grant what is neither there nor on its way
//	     |              read   -> small pieces go to their owners in batches; pieces of 1 MiB and more are read by owners
//	     |              complete -> owners: checksums; they write their journal
//	     +--- demand ---> a demand read goes first, once for all readers (single-flight)
//
// A node that has read its runs goes on with runs that others have not begun (work stealing). What a lost node had is
// fetched again by those that take its place. With order=seed:S or list:FILE each piece is fetched alone, in its turn.
//
// # Single pass: everything else (package ingest)
//
//	tar:  |--- region 0, node a ---|--- region 1, node b ---|--- region 2, node c ---|     one region a node
//	                               ^ search for a header, then speculate from the member E that it begins
//	      boundary 0 -> 1: offset of the first headers that node a has not staged, or the member that is cut
//	      node b parses from the boundary to E: if it ends at E, the speculation holds; else it is undone
//
// A compressed tar has one reader, on the node that the hash of its path chooses. Of several archives each is read by one
// node. The reader stores members at their owners as they come; the manifest is built when all parts are read.
// A part whose node is lost, or whose daemon restarts, is read again from its last checkpoint if it is the same node.
//
// # Formats
//
//	format              readers       restart points          resume after a restart      cost of one lost file
//	directory           all nodes     each file               journal                     the file
//	tar, scanned        all nodes     each member             journal                     the file
//	tar, single pass    one a region  each member             its last checkpoint         the file
//	zip                 all nodes     each member             journal; the part anew      the member
//	compressed tar      one           none                    unpacked from the beginning from the beginning, all at once
//	several archives    one each      as of each              after the last whole ones   as of each
//
// # What does not fit
//
// Where the sizes are known before the data is read (directory, tar, zip), a hash of the paths chooses the files that
// overflow: they stay in the source, and each node reads them through a bounded cache. A compressed tar, a tar with sparse
// members and anything with on-error=skip has to fit, or is refused with the numbers. Files
// that fall to a node later and do not fit there (other nodes were lost, scratch has grown) overflow, too: their owner
// reads them through for all nodes, except in a compressed tar.
//
// # Invariants
//
// Each piece has one owner. Its bytes are compared with a checksum wherever one is known: xxh3-128 of a file, CRC-32C of
// a chunk and of a file that two nodes have read. A source that has changed is ESTALE, and nothing of it is served.
// Inodes carry the number of the try that made them, so that nothing a lost reader still stores belongs to a file.
//
// # Packages
//
// This package is the vocabulary: the user's request (Request, Options, Order), the plan (Plan, Part, Origins), and how items
// become records (Placer, Recorder, Selection). It reads nothing but the user's list. The work is done in three packages
// that do not import each other: scan lists the source and makes plans, ingest is the single pass, fill fetches the files of
// a published manifest. Below them are archive (reading files where they lie) and source (formats).
package stagein
