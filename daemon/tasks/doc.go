// Package tasks runs long work on other nodes: a part of a stage-in, a share of a
// stage-out, a verification, a repair. A node asks another one to start a task,
// polls it until it is done, and cancels it if it no longer needs the result.
//
//	caller                         node
//	Start  ── OpTask ──────────▶  Kind checks the request, the task starts
//	Watch  ── OpTaskPoll ──────▶  State: done, error, detail of the kind
//	Abandon ─ OpTaskCancel ────▶  the task's context ends
//
// What a task does is its kind's business: the other parts of the daemon register
// their kinds before the node serves requests. A kind checks every field of a
// request, since nothing on a node may depend on a peer being right.
//
// Invariants:
//   - A task ID is unique in the job; a second start of it is EEXIST.
//   - At most maxRunning tasks run, and at most maxOver results are kept.
//   - Tasks of a closed group have ended when CloseGroup returns, and no task of
//     the group starts afterwards.
//
// Locks: Runner.mu is never held while a task runs or while a node is called.
//
// The package knows neither datasets nor stage-outs.
package tasks
