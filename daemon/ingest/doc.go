// Package ingest stages datasets in. One node, the coordinator, finds out what the source
// has; for a source that has to be read to be known, all nodes read a part of it in a
// single pass. The coordinator then builds the manifest, and the follower of every node
// (package dataset) loads it.
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
// Each start of the stage-in on some node is an attempt; the registry counts them, and
// refuses proposals of an earlier one (ESTALE). While files are only being scanned, a new
// attempt starts from nothing. During a single pass the coordinator saves its state and
// replicates it to two standbys; the next coordinator takes that over, and the parts that
// other nodes read go on undisturbed.
//
// # Invariants
//
//   - A coordinator works in the directory of its attempt. A file appears in the directory
//     of the dataset whole, and only while no later attempt is known (put).
//   - A part that is read again gets a new number, so that late writes of the lost node
//     are recognised and refused (dataset.Fence).
//   - Nothing waits for the source of a superseded attempt: it may be stuck.
//   - Each byte of the source that the dataset is made of is counted; what a killed daemon had
//     read since its last mark is not.
//
// # Locks
//
//	Stager.placeMu  while an attempt puts files in their place; the registry's lock under it
//	coordinator.saving (a token)
//	  coordinator.mu
//	Stager.mu       coordinators, boundaries; a leaf
//
// None is held across a remote call, except saving, which replicates.
//
// The package knows neither the control socket nor what becomes of a dataset once it is
// published.
package ingest
