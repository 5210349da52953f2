// Package copies is the protocol by which the bytes of a file with several copies (metadata.Layout.Copies)
// stay equal on the nodes that have them, and are made on other nodes in the place of lost ones. Its one idea is that
// the cluster map alone says which copies count, and which are to be made (cluster.Map.CopiesOf): no node keeps a list.
//
//	write   to every current copy, and when those have it, to one that is being made. One that does not answer is
//	        asked again until it does, or a newer map has excluded it (Write). Only then is the write acknowledged.
//	make    the first current copy (Source) copies the object from its beginning, range by range. No write to the
//	        range gets in between. A range that is not answered ends the try, and another one begins with an
//	        empty object; what arrives of the first one then is refused (Intake). Before it begins, it refuses writers
//	        whose map is older than the one by which it copies (Fence), for good: a later run of the node learns
//	        that from its own map. It copies only under its Lease.
//	        A copy that a truncate has emptied stays an object, and is copied: else the old object of a node that
//	        returns would count in its place.
//	count   when every node that serves has reported that it has made what it is to make, by a map of which no node
//	        has come or gone since, the leader has the map record it (cluster.Map.WithRestored): from that epoch on
//	        all new copies are current, but for those of files whose home is lost, which alone knows where they
//	        are. While that is under way the leader renews no lease, so a node that has started again, and would
//	        make copies anew, knows of it before.
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
// later one, as long as one copy that the map has not excluded is readable; else it fails. So data survives any number
// of losses, if copies are restored between two of them.
//
// The package does no I/O and knows no clock. It does not order writes: two nodes that overwrite the same bytes
// at the same moment, without a lock, may leave copies that differ.
package copies
