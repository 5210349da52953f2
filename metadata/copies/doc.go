// Package copies is the protocol by which the bytes of a file with several copies (metadata.Layout.Copies)
// stay equal on the nodes that have them. Its one idea is that the cluster map alone says which copies
// count (cluster.Map.Current): no node keeps a list, and a later map never has more of them.
//
//	write   to every current copy. One that does not answer is asked again until it does, or a newer map
//	        has excluded it (Write). Only then is the write acknowledged.
//	read    from any current copy. The answer counts if the copy is still current when it arrives.
//	serve   a node answers a read only while its Lease is valid, its own map has it serving, and the map of
//	        the reader is not older than the epoch since which it serves (Serves).
//
// A leader gives a node up after it has heard nothing of it for the failure timeout, so a Lease of a part of
// that ends before any other copy can be written alone. The lease is renewed after the node has taken the
// leader's map: a node that was given up and returns knows it before it serves again.
//
// # Invariant
//
// A read that begins after a write was acknowledged, and succeeds, returns the bytes of that write or of a
// later one, as long as one copy that the map has not excluded is readable; else it fails.
//
// The package does no I/O and knows no clock. It does not order writes: two nodes that overwrite the same bytes
// at the same moment, without a lock, may leave copies that differ.
package copies
