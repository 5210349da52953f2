// Package erofs writes EROFS images of trees whose files have no data in the image.
//
// As in composefs, a file of the image has two extended attributes, read by overlayfs, that give the location of its
// data in another layer (Node.Redirect). The image is written in one pass over the directories, in the order of their
// numbers, with little memory: before the entries of a directory are written, only the position of its inode is known.
//
// Invariants:
//   - The tree comes from an unprivileged user: every name is validated, and the size of the image is limited.
//   - The image can be read by Linux 5.4 and later (fs/erofs/erofs_fs.h).
//
// Format. Numbers are little endian:
//
//	0       1,024 bytes of zeros
//	1024    superblock, 128 bytes
//	1152    inodes of the directories, 64 bytes each, by number; 0 is the root
//	…       inodes of files and symbolic links, 64 bytes each, followed by extended
//	        attributes and, if it fits in the block, the target of a link; any other
//	        target has a block of its own
//	64 GiB  blocks of the directories, 4 KiB each
//
// Between the last two there is a hole. A node id is the offset of an inode in units of 32 bytes. A directory block is
// entries (node id 8, offset of the name 2, type 1, 0) followed by their names; the names, including "." and "..", are
// in byte order over all blocks of a directory.
//
// The package does not read images, compresses nothing, and knows no devices.
package erofs
