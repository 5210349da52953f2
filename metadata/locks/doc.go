// Package locks provides the file locks of a home, flock(2) and fcntl(2), across the nodes of the job. A request never
// waits in a call: it is queued, its node is woken when it was granted, and repeats it. So a waiter costs a few bytes,
// and the next repetition repairs a lost wake-up. A waiter that gives up cancels its request. A delayed copy of the
// request is refused, and so is a request that does not wait and is cancelled before the home was ready for it.
//
// Table is the state machine without I/O; Locks adds clock, wake-ups and recovery.
//
// # Rules
//
// An owner is the kernel's lock owner: a process (fcntl), or an open file (flock, OFD locks). Locks of one owner
// replace each other byte by byte. Waiters are served in order. A request that does not wait may overtake them if no
// lock conflicts, and so may a request of an owner that holds a lock. EDEADLK is returned, for fcntl only, if a wait
// closes a cycle of owners in this home; cycles over two homes are not found.
//
// A node has no locks on a file that it has closed, and none at all when it is lost or its client restarts. After a
// restart of the home the nodes report their locks (metadata.Recall), and no lock is granted before all have reported.
//
// # Locks
//
//	Table.mu    held for a few steps in memory; the registry of open files takes it under its own lock
//	  Locks.mu  clients to wake, requests that wait for the home
package locks
