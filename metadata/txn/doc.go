// Package txn makes operations that change records of several homes atomic: mkdir, rmdir, link, unlink and rename. It
// is two-phase commit with presumed abort, run by the daemon of the home that has the (source) entry: an operation has
// happened only if that home has recorded it as committed.
//
// It must not know sockets: the store, the peers and the clock are parameters. The store does operations of one home
// alone, in one step.
//
// # The protocol
//
// C is the coordinator, P each other participant.
//
//	C  Hold        checks and locks its own changes, in memory
//	P  Prepare     the same, and records an intent: it can now commit whatever happens
//	C  Decide      in one step applies its edits and records the decision with all P
//	P  Commit      in one step applies its edits and removes the intent
//	C  Forget      when all P have replied
//
// The caller gets its reply after Commit, or once a P turns out to be unreachable for it: then Commit is retried until
// that P replies. Each side holds its locks until it is done, and reads wait for them, so that no reader sees half of
// an operation.
//
// C waits for locks only while it holds none. If a lock at P, or a later one at C, is taken, it aborts, waits for a
// random time and retries: there is no deadlock between homes.
//
// # Crashes
//
// A P in doubt asks C after a while. C replies undecided from its memory, committed from its decisions, and aborted
// otherwise. A restarted C delivers its decisions again. So after a crash of any side at any moment, and its restart,
// an operation has happened on all sides or on none.
//
// If C is Down, P gives the transaction up: it releases the locks and keeps the intent. If C returns and has committed,
// P applies all edits that are still possible; a taken name gets a suffix (".late0"). Until then the other half is on a
// node that cannot be reached.
//
// A home that is Down cannot take part: EHOSTDOWN. An unreachable home that is Up is retried for some seconds.
// Exceptions: the home of a renamed file need not learn of the rename, as only the file's ctime changes; a new
// directory is created here if the chosen home is unreachable; and a name whose inode was lost with its home is removed
// alone, so that users can clean up. If that home returns, the inode is an orphan (package daemon/home).
//
// # Promises
//
// No operation runs twice: if its connection breaks it continues, and the caller fetches the reply (package rpc). After
// ECONNRESET, ETIMEDOUT or EINTR the operation has happened as a whole or not at all, perhaps only once the coordinator
// has returned. A caller that gives up before the decision aborts the operation.
//
// # Moving directories
//
// A directory gets another parent under the job-wide rename lock, which the home of RootIno keeps, so that the path
// above the new parent cannot change while it is walked home by home; EINVAL if the path leads through the directory.
// The lock is a lease: its holder stops before the lease ends, and a restarted home grants none for the length of a
// lease.
//
// Calls between nodes for a client's operation on another node's home (one less on its own): 1 for that home alone, 3
// with a second home, 2 for each further one. Moving a directory adds the lock and its release, and a call for each
// change of home on the path.
//
// # Locks
//
//	Coordinator.turn   one move of a directory at a time; held across calls, a context ends the wait
//	Coordinator.mu     undelivered decisions
//	renameLock.mu      the holder of the rename lock
//
// The last two are never held together.
package txn
