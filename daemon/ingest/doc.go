// Package ingest stages datasets in. One node, the coordinator, finds out what the source has. If only a read shows
// that, all nodes read a part of the source in a single pass. The coordinator then builds the manifest, and the
// follower of every node (package dataset) loads it.
//
//	coordinator                 participants            registry
//	Begin ─────────────────────────────────────────▶   dataset: Staging
//	scan, or plan ── tasks ──▶  read their parts
//	     ◀── records, boundaries ──
//	replicate to the standbys
//	build the manifest ────────────────────────────▶   dataset: Publishing
//
// # Losing the coordinator
//
// Each start of the stage-in on a node is an attempt; the registry counts attempts, and refuses proposals of an earlier
// one (ESTALE). While the source is only being scanned, a new attempt starts again. During a single pass the
// coordinator saves its state and replicates it to two standbys; the next coordinator takes the state over, and other
// nodes continue to read their parts undisturbed.
//
// # Invariants
//
//   - A coordinator works in the directory of its attempt. A file appears in the directory
//     of the dataset atomically, and only while no later attempt is known (put).
//   - A part that is read again gets a new number, so that late writes of the lost node
//     are recognised and refused (dataset.Fence).
//   - Nothing waits for the source of a superseded attempt: it may hang.
//   - Each byte of the source that the dataset consists of is counted, except bytes that a
//     killed daemon had read since its last mark.
//
// # Locks
//
//	Stager.placeMu  while an attempt puts files in place; the registry's lock is taken under it
//	coordinator.saving (a token)
//	  coordinator.mu
//	Stager.mu       coordinators, boundaries; a leaf
//
// None is held across a remote call, except saving, which replicates.
//
// The package knows neither the control socket nor the life of a dataset after it is published.
package ingest
