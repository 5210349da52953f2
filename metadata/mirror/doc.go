// Package mirror is the protocol by which a home keeps a copy of its records on another node, its partner,
// which stands in for it when it is lost. Its one idea is that a change is made on the partner first: what the
// home shows, its partner has.
//
//	add      the home gives each batch of changes a place in the stream to its partner (Home.Add)
//	send     the stream is sent in order, one message at a time; one without an answer is sent again (Home.Next)
//	accept   the partner applies each message once, in order, together with its number (Copies.Accept)
//	probe    an idle home sends messages without changes, to notice that the partner has lost its copy (Home.Probe)
//	apply    the home applies a batch after the partner has accepted it (Home.May), then forgets it (Home.Done)
//
// A stream begins with all records that the home has, read after the stream has begun, so that each batch is
// among those or follows them. A home without a partner makes changes also while its records are sent, not waiting for
// the partner, and waits again once they are. The message after the records makes the copy complete. Then the home binds
// itself: it records its partner on its disk (Home.Bind), and only then has the cluster map record it
// (cluster.Map.WithPartner). While it is bound it changes nothing without its partner until a map shows that the
// partner has stopped to serve (Home.See), which clears the record too. When the home is given up while the map
// has its partner, the partner stands in for it (cluster.Partner.StandsIn): it seals its copy, and opens
// it as a home. A home that finds itself replaced serves nothing any more. One that starts again while it is bound
// makes a new copy before its first change; until that is complete the old copy counts, which has all that was
// acknowledged.
//
// A disk also records that its home has no partner, when the home is first told so by a leader. One without any record
// was wiped if the map has a partner (Wiped): the partner stands in for the home at once. A home that was wiped
// between binding itself and the record in the map is taken for a new one.
//
// A home that is bound answers only while its lease is valid (copies.Lease): it ends before the partner can stand
// in.
//
// # Seats
//
// The partner that stands in has the seat of the home (cluster.Node.Seat). It runs the same protocol, as a Home, with
// another node, its heir (cluster.Node.Heir). When it is given up while the map has the heir, that gets the seat. Seats
// are told apart by their Since, which grows: messages and proposals carry the Since of their sender, and those of an
// earlier seat are refused by the partner (Copies.Accept) and by the map (cluster.Map.WithPartner). A node that had a
// seat removes its records when its map shows a later one (Copies.Outdated), and can become the heir after that. A
// sealed copy is never made a home for another seat. No node takes a message before its lease has begun: a map of before
// may lack a seat that it has itself. A node without the records of its seat, because its disk was
// wiped, has the map give the seat to the heir. The home itself never gets its seat back.
//
// # Invariant
//
// A read that begins after a change was acknowledged, and succeeds, has the change. It is so after the loss of
// either node, once the map has recorded the partner or heir, and so after any number of losses if it has recorded the
// next one before each; a copy that may have missed a change is never opened.
//
// The package does no I/O. A Home and a Copy are not safe for concurrent use.
package mirror
