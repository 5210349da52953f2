// Package tasks runs long work on other nodes: a part of a stage-in, a share of a stage-out, a verification, a repair.
// A node asks another one to start a task, polls it until it has ended, and cancels it if it no longer needs the
// result.
//
//	caller                         node
//	Start  ── OpTask ──────────▶  Kind checks the request, the task starts
//	Watch  ── OpTaskPoll ──────▶  State: done, error, detail of the kind
//	Abandon ─ OpTaskCancel ────▶  the task's context ends
//
// The work of a task is up to its kind: the other parts of the daemon register their kinds before the node serves
// requests. A kind checks every field of a request, since a node must not rely on a peer being correct.
//
// Invariants:
//   - A task ID is unique in the job; a second start with the same ID is EEXIST.
//   - At most maxRunning tasks run, and at most maxOver results are kept.
//   - Tasks of a closed group have ended when CloseGroup returns, and no task of
//     the group starts afterwards.
//
// Locks: Runner.mu is never held while a task runs or while a node is called.
//
// The package knows neither datasets nor stage-outs.
package tasks
