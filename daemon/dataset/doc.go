// Package dataset is what one node does for the datasets of its job once their bytes
// arrive: it keeps their manifests, stores and serves their files, fetches what is
// missing, and verifies and repairs stored files.
//
//	Follower   follows the registry: loads manifests, starts fills, drops failed datasets
//	Tables     the manifests that this node can answer for
//	Fills      fetches the files that a published dataset lacks (package stagein)
//	Server     reads and writes by other nodes
//	Local      reads by this node's own client
//	Fence      keeps late writers out of datasets that failed or were read again
//	Verifier   verify and repair on all nodes
//	Files      the files of a stage-in, and their transfer between nodes
//	Stores     the chunk stores of all nodes, as the target of staged bytes
//
// # Invariants
//
//   - A manifest is used only if its digest is the one that the registry has.
//   - Nothing is written to an object of a dataset after Fence.End, or to an object of
//     an excluded attempt after Fence.Exclude; both return when earlier writes are over.
//   - A handler for another node never waits long for a fetch: it answers EAGAIN and the
//     reader asks again (waitTime, maxWaits).
//   - A file that was never stored for lack of room is read from the source by the node of
//     its reader; one that loses its room later, by its owner, for all nodes.
//
// # Locks
//
//	Fence.gate  held for reading by writes, for writing while a dataset ends
//	  Fence.mu
//	Fills.linking  held while a link is made or removed
//	  Tables.mu, Fills.mu, readCheck.mu, dirty.mu, verification.mu: leaves
//
// None is held across a remote call.
//
// The package does not know how a dataset is staged in (package ingest), the live
// realm, or mounts.
package dataset
