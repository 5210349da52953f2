// Package chunkstore keeps one node's share of all file data on its local disks. An
// object is one plain file whose name is computed from the inode number: a restart
// needs no index, the kernel can use the descriptor (sendfile, FUSE passthrough), and
// removal is unlink.
//
//	<store directory>/objects/<last byte of the ino, in hex>/<ino, in 16 hex digits>
//	<store directory>/whole/<the same>    a link to an object that is whole and verified (LinkWhole)
//	<store directory>/keep, kept.<name>   objects that are kept for a later store, or by an earlier one
//
// A new object goes to the store directory (disk) with the fewest bytes among those with room, and stays there; a
// lookup tries the directories in an order derived from a hash of the inode number. An object cannot be larger than its
// disk. Holes stay sparse and read as zeros; a read ends at the end of the object. At most Config.MaxOpen descriptors
// are open; the least recently used are closed.
//
// The quota counts allocated bytes, without holes; see usage. A scan after a restart counts the existing objects. Some
// bytes of the first directory, which shares its disk with the metadata, stay free (Config.Reserve), so that removal
// always works.
//
// Some objects are spare: when a write finds no room, the store asks their owner to remove some (Spare).
//
// A closed store can leave objects to a later one (Keep), which adopts those whose key it asks for (AdoptKept), after
// reading each and comparing its checksum. Until then kept objects count as free, and are removed before any spare
// object when a write finds no room. An unreadable object is not adopted.
//
// Each 4 KiB block of an object of the live realm has a checksum of 32 bits, which the write computes and every read
// compares; a block that differs is EIO. The checksums are in memory (Config.Sums), for the most recently used objects:
// data that an earlier run of the daemon wrote, or that was long unused, is not compared until it is written again. So
// neither a kill, a power loss nor a torn write leaves a checksum that differs from its bytes. A hole has no checksum.
// Stage-in keeps the checksums of datasets; only dataset objects are lent (Lend), opened and spliced.
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
