// Package stagein stages datasets onto the nodes of a job. All nodes read the source together, each byte once, and send
// data to its owner at once. How a source is read depends on whether its content can be listed without reading it.
//
// # Scan, then fill: a directory, a large zip, a tar of large members
//
//	coordinator      scan.Run: walk the tree, read the central directory, or read one header after another
//	     |              -> manifest (names, attributes, manifest.Origin of each file) -> published: the tree is visible
//	     v
//	every node       fill.Fill: runs of 4 MiB of an archive, in the order of the fill
//	     |              offer  -> owners: "I read these pieces"     owners grant pieces neither present nor in flight
//	     |              read   -> small pieces go to their owners in batches; owners read pieces of 1 MiB and more
//	     |              complete -> owners: checksums; they write their journal
//	     +--- demand ---> demand reads first, one fetch for all readers (single-flight)
//
// A node that has read its runs continues with runs that no node has begun (work stealing). The nodes that replace a
// lost node refetch its pieces. With order=seed:S or list:FILE, pieces are fetched one by one, in order.
//
// # Single pass: everything else (package ingest)
//
//	tar:  |--- region 0, node a ---|--- region 1, node b ---|--- region 2, node c ---|     one region a node
//	                               ^ search for a header, then speculate from the member E that it begins
//	      boundary 0 -> 1: offset of the first headers that node a has not staged, or the cut member
//	      node b parses from the boundary to E: if it ends at E, the speculation holds; else it is undone
//
// A compressed tar has one reader, on the node chosen by the hash of its path. Of several archives, each is read by one
// node. The reader stores members at their owners as they arrive; the manifest is built after all parts were read. A
// part whose node is lost or whose daemon restarts is read again; if by the same node, from its last checkpoint.
//
// # Formats
//
//	format              readers       restart points          resume after a restart      cost of one lost file
//	directory           all nodes     each file               journal                     the file
//	tar, scanned        all nodes     each member             journal                     the file
//	tar, single pass    one a region  each member             its last checkpoint         the file
//	zip                 all nodes     each member             journal; the part again     the member
//	compressed tar      one           none                    unpacked from the beginning from the beginning, all at once
//	several archives    one each      as of each              after the last whole ones   as of each
//
// # What does not fit
//
// If the sizes are known before the data is read (directory, tar, zip), a hash of the paths chooses the files that
// overflow: they stay in the source, and each node reads them through a bounded cache. A compressed tar, a tar with
// sparse members and anything with on-error=skip must fit, or is refused with the numbers. Files that fall to a node
// later and do not fit there (other nodes were lost, scratch has grown) overflow too: their owner reads them through
// for all nodes, except in a compressed tar.
//
// # Invariants
//
// Each piece has one owner. Its bytes are compared with every known checksum: xxh3-128 of a file, CRC-32C of a chunk
// and of a file that two nodes have read. A source that has changed is ESTALE, and none of it is served. Inodes carry
// the number of the try that made them, so that late stores of a lost reader cannot belong to a file.
//
// # Packages
//
// This package is the vocabulary: the user's request (Request, Options, Order), the plan (Plan, Part, Origins), and how
// items become records (Placer, Recorder, Selection). It reads only the user's list. Three packages that do not import
// each other do the work: scan lists the source and makes plans, ingest is the single pass, fill fetches the files of a
// published manifest. Below them are archive (reading files where they lie) and source (formats).
package stagein
