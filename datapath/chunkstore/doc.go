// Package chunkstore keeps one node's share of all file data on its local disks. An
// object is one plain file whose name is computed from the inode number: a restart
// needs no index, the kernel can use the descriptor (sendfile, FUSE passthrough), and
// removal is unlink.
//
//	<store directory>/objects/<last byte of the ino, in hex>/<ino, in 16 hex digits>
//	<store directory>/whole/<the same>    a link to an object that is whole and verified (LinkWhole)
//	<store directory>/keep, kept.<name>   objects that are kept for a later store, or by an earlier one
//
// A new object goes to the store directory (disk) with the fewest bytes among those
// with room, and stays there; a lookup tries the directories in an order given by a
// hash of the inode number. An object cannot be larger than its disk. Holes stay sparse
// and read as zeros; a read ends at the end of the object. At most Config.MaxOpen
// descriptors are open; the least recently used are closed.
//
// The quota counts allocated bytes, without holes; see usage. A scan counts what is
// there after a restart. On the disk of the first directory, where the metadata lies,
// some bytes stay free (Config.Reserve), so that removing always works.
//
// Some objects are spare: when a write finds no room, their owner is asked to remove some
// (Spare).
//
// A closed store can leave objects to a later one (Keep), which adopts those whose key it asks for
// (AdoptKept): it reads each and compares its checksum first. Until then they count as free, and go
// before any spare object when a write finds no room. Whatever cannot be read is not adopted.
//
// Objects of the live realm have a checksum of 32 bits per block of 4 KiB, made by the write and
// compared by every read; the bytes of a block that differs are EIO. The sums are in memory
// (Config.Sums), of the objects used last: what an earlier run of the daemon has written, or was
// not used for long, is not compared until it is written again. So a kill or a power loss leaves
// no sum that its bytes do not have, and of a torn write neither. A hole has no sum. Checksums of
// datasets belong to stage-in; only their objects are lent (Lend), opened and spliced.
//
// It must not know files, layouts or other nodes.
//
// Lock order:
//
//	object.mu
//	    sums.mu
//	        objectSums.mu
//	    object.countMu
//	object.openMu
//	    table.mu
//	    sums.mu
//	    disk.mu
package chunkstore
