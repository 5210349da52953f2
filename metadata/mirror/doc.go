// Package mirror is the protocol by which a home keeps a copy of its records on another node, its partner, which stands
// in for it when it is lost. Its central idea is that a change is made on the partner first: the partner has every
// change that the home shows.
//
//	add      the home gives each batch of changes a place in the stream to its partner (Home.Add)
//	send     the stream is sent in order, one message at a time; one without an answer is sent again (Home.Next)
//	accept   the partner applies each message once, in order, together with its number (Copies.Accept)
//	probe    an idle home sends messages without changes, to notice that the partner has lost its copy (Home.Probe)
//	apply    the home applies a batch after the partner has accepted it (Home.May), then forgets it (Home.Done)
//
// A stream begins with all records of the home, read after the stream has begun, so that each batch is among them or
// follows them. While a home without a partner sends its records, it makes changes without waiting for the partner;
// once the records are sent, it waits again. The message after the records makes the copy complete. Then the home binds
// itself: it records its partner on its disk (Home.Bind), and only then has the cluster map record it
// (cluster.Map.WithPartner). While it is bound it changes nothing without its partner until a map shows that the
// partner no longer serves (Home.See), which clears the record, too. When the home is given up while the map has its
// partner, the partner stands in for it (cluster.Partner.StandsIn): it seals its copy, and opens it as a home. A
// replaced home no longer serves. A home that restarts while it is bound makes a new copy before its first change;
// until that copy is complete the old one counts, which has all acknowledged changes.
//
// A disk also records that its home has no partner, once a leader has first confirmed this. If a disk has no such
// record although the map has a partner, it was wiped (Wiped): the partner stands in for the home at once. A home that
// was wiped after it bound itself, but before the map recorded that, is taken for a new one.
//
// A bound home answers only while its lease is valid (copies.Lease): the lease ends before the partner can stand in.
//
// # Seats
//
// The partner that stands in has the seat of the home (cluster.Node.Seat). It runs the same protocol, as a Home, with
// another node, its heir (cluster.Node.Heir). When it is given up while the map has the heir, the heir gets the seat.
// Seats are identified by their Since, which increases: messages and proposals carry the Since of their sender, and the
// partner (Copies.Accept) and the map (cluster.Map.WithPartner) refuse those of an earlier seat. A node that had a seat
// removes its records when its map shows a later one (Copies.Outdated), and can become the heir after that. A sealed
// copy never becomes a home for another seat. No node takes a message before its lease has begun: an older map may lack
// a seat that the node itself has. If a node lacks the records of its seat, because its disk was wiped, it has the map
// give the seat to the heir. The home itself never gets its seat back.
//
// # Invariant
//
// A read that begins after a change was acknowledged, and succeeds, includes the change. This holds after the loss of
// either node, once the map has recorded the partner or heir, and so after any number of losses if the map has recorded
// the next heir before each. A copy that may have missed a change is never opened.
//
// The package does no I/O. A Home and a Copy are not safe for concurrent use.
package mirror
