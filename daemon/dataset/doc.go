// Package dataset implements a node's work for the job's datasets once their bytes arrive: it keeps manifests, stores
// and serves files, fetches missing files, and verifies and repairs stored ones.
//
//	Follower   follows the registry: loads manifests, starts fills, drops failed datasets
//	Tables     the manifests of the datasets whose metadata this node serves
//	Fills      fetches the files that a published dataset lacks (package stagein)
//	Server     reads and writes from other nodes
//	Local      reads by this node's own client
//	Fence      refuses late writes to datasets that failed or were read again
//	Verifier   verify and repair on all nodes
//	Files      the files of a stage-in, and their transfer between nodes
//	Stores     the chunk stores of all nodes, as the target of staged bytes
//
// # Invariants
//
//   - A manifest is used only if its digest matches the registry's.
//   - Nothing is written to an object of a dataset after Fence.End, or to an object of an excluded attempt after
//     Fence.Exclude; both return after all earlier writes have ended.
//   - A handler for another node never waits long for a fetch: it returns EAGAIN and the reader retries
//     (waitTime, maxWaits).
//   - A file that was never stored for lack of room is read from the source by the reader's node. If a file loses its
//     room later, its owner reads it from the source for all nodes.
//
// # Locks
//
//	Fence.gate  held shared by writes, exclusively while a dataset ends
//	  Fence.mu
//	Fills.linking  held while a link is created or removed
//	  Tables.mu, Fills.mu, readCheck.mu, dirty.mu, verification.mu: leaves
//
// None is held across a remote call.
//
// The package does not know how a dataset is staged in (package ingest), the live realm, or mounts.
package dataset
