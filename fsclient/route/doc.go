// Package route finds the node for a call. Its one idea is that an inode number says where its record is, a layout
// where its bytes are, and a directory's shards where an entry is: the route needs no call. Only a directory that was
// split or merged meanwhile costs a detour (Entry, Do).
//
// It refuses to call a node that the cluster map has given up (EHOSTDOWN), so that no call waits for it. It does not
// know the calls themselves.
//
// Lock order: cache.Stubs.mu and cluster.ShardTable's are taken last, and never held across a call.
package route
