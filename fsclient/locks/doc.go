// Package locks is the client side of file locks, flock(2) and fcntl(2). The home of a file grants locks
// (metadata.Locks); a Locker asks it, waits, and unlocks. Files of datasets have no home: they are locked on this node
// only.
//
// Its one idea is that the kernel believes the answer to each call, so any state that an answer left open at the home
// is corrected in the background: an unlock that was interrupted or not answered is retried, and so is the cancel of a
// request that may have been granted unseen. The retries end when the home has answered, when the cluster map gives the
// home up, or with the client.
//
// Invariants:
//
//   - An unlock, or a read lock that replaces a write lock, reaches the home only after
//     all buffered writes of this node have arrived and the home knows the file's
//     size: the next holder sees them.
//   - While an unlock or a cancel of an owner is retried, the owner gets no new lock
//     on the file, so that the retry cannot end the new lock; and the file stays open
//     for its home.
//   - A waiter has a place in the home's queue and makes no calls until the home
//     wakes it. It asks again now and then, because a home that restarts forgets it.
//   - The granted locks are mirrored here, in the order of the home's versions. A
//     home that restarts gets them back (Held).
//
// The package does not know how files are written: it sees them through Files.
//
// Lock order: table.mu is taken last; it is never held across a call.
package locks
