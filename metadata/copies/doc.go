// Package copies is the protocol by which the bytes of a file with several copies (metadata.Layout.Copies) stay equal
// on their nodes, and by which other nodes get copies in place of lost ones. Its central idea is that only the cluster
// map determines which copies count and which are to be made (cluster.Map.CopiesOf).
//
//	write   to every current copy, and once those have the bytes, to one that is being made. The request to a copy is
//	        repeated until it answers, or a newer map has excluded it (Write). Only then is the write acknowledged.
//	make    the first current copy (Source) copies the object from its beginning, range by range. No write to the
//	        range gets in between. A range without an answer ends the try, and another try begins with an empty
//	        object; ranges of the first try that arrive later are refused (Intake). Before it begins, the node
//	        refuses writers whose map is older than the one by which it copies (Fence), for good: a later run of
//	        the node learns that from its own map. It copies only under its Lease.
//	        A copy that a truncate has emptied stays an object, and is copied: otherwise the old object of a node
//	        that returns would count in its place.
//	count   once every node that serves has reported that it has made its copies, by a map since which no node has
//	        joined or left, the leader has the map record it (cluster.Map.WithRestored): from that epoch on all new
//	        copies are current, except for files whose home is lost, which alone knows their places. While this is
//	        in progress the leader renews no lease, so a node that has restarted, and would make copies anew,
//	        learns of it first.
//	read    from any current copy. The answer counts if the copy is still current when it arrives.
//	serve   a node answers a read only while its Lease is valid, its own map has it serving, and the map of
//	        the reader is not older than the epoch since which it serves (Serves).
//
// A leader gives a node up after it has heard nothing from it for the failure timeout, so a Lease of a part of that
// timeout ends before any other copy can be written alone. The lease is renewed after the node has taken the leader's
// map: a node that was given up and returns learns of that before it serves again.
//
// # Invariant
//
// A read that begins after a write was acknowledged, and succeeds, returns the bytes of that write or of a later one,
// as long as one copy that the map has not excluded is readable; otherwise it fails. So data survives any number of
// losses, if copies are restored between two losses.
//
// The package does no I/O and knows no clock. It does not order writes: two nodes that overwrite the same bytes
// at the same moment, without a lock, may leave copies that differ.
package copies
