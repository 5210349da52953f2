// Package datapath is the vocabulary of file data: how the bytes of a file map to nodes (Spans), and the small
// interfaces of a data store. All chunks of one inode on one node form one local object, in the order of the file; so a
// range of a file needs at most one range per node and stripe row.
//
// It must not know RPC, layouts in the tree, or how objects are stored. It does no I/O except for
// draining a Pipe.
package datapath
