// Package metadata is the vocabulary of Bivouac's namespace: inode numbers,
// attributes, entries, layouts, and the small interfaces that every store of
// metadata satisfies. Its one idea is that a node's store, the RPC stub of a
// remote node's store and the client that routes between them are the same
// interface, so that they stack.
//
// It does no I/O and imports nothing else of ours.
//
// # Inode numbers
//
// An Ino says where its record is, so that no table has to be asked:
//
//	bit 63 = 0   live realm     bits 48-62 home node, bits 0-38 counter on that node; bits 39-47: Object, Moved
//	bit 63 = 1   sealed realm   bits 48-62 dataset,   bits 32-47 part, bits 0-31 sequence in the part
//
// The home of a live inode never changes. A directory's entries live on the
// home of the directory; a file is created on the home of its directory, so
// that a create is one call to one node. A directory with very many entries is
// wide (Shards): then this holds for each entry instead. A new directory is
// homed on the node that makes it while its parent has few, and by hash then,
// which distributes the tree over the nodes (cluster.Map.NewDirHome).
//
// Numbers below FirstIno are reserved: RootIno is the root of the live realm,
// and the mount uses the others for what it makes up itself (its own root,
// data/, .bivouac/).
package metadata
