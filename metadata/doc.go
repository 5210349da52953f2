// Package metadata is the vocabulary of Bivouac's namespace: inode numbers, attributes, entries, layouts, and the small
// interfaces that every metadata store implements. Its central idea is that a node's store, the RPC stub of a remote
// node's store and the client that routes between them implement the same interface, so that they stack.
//
// It does no I/O and imports no other package of this project.
//
// # Inode numbers
//
// An Ino encodes the location of its record, so that no table is needed:
//
//	bit 63 = 0   live realm     bits 48-62 home node, bits 0-38 counter on that node; bits 39-47: Object, Moved
//	bit 63 = 1   sealed realm   bits 48-62 dataset,   bits 32-47 part, bits 0-31 sequence in the part
//
// The home of a live inode never changes. A directory's entries live on the home of the directory; a file is created on
// the home of its directory, so that a create is one call to one node. A directory with very many entries is sharded
// (Shards): then this holds for each entry instead. While its parent has few directories, a new directory is homed on
// the node that creates it; after that its home is chosen by hash, which distributes the tree over the nodes
// (cluster.Map.NewDirHome).
//
// Numbers below FirstIno are reserved: RootIno is the root of the live realm, and the mount uses the others for its
// synthetic inodes (its own root, data/, .bivouac/).
package metadata
