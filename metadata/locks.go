package metadata

import "context"

// LockKind separates the locks of flock(2) from the locks of fcntl(2); the two kinds do not conflict.
type LockKind uint8

// The kinds of locks.
const (
	PosixLock LockKind = 0 // fcntl(2), including locks of open file descriptions
	FlockLock LockKind = 1
)

// LockType is the mode of a lock.
type LockType uint8

// The types of locks.
const (
	Unlocked  LockType = 0
	ReadLock  LockType = 1
	WriteLock LockType = 2
)

// MaxLockEnd is the last byte of a lock without an end.
const MaxLockEnd = 1<<63 - 1

// Lock is a lock on a range of a file.
type Lock struct {
	Kind  LockKind
	Type  LockType
	Owner uint64 // owner on the client's node, as its kernel numbers it
	Start uint64
	End   uint64 // the last byte
	PID   uint32 // process on the client's node, for reports
}

// LockReq requests a lock, or, with the type Unlocked, its release.
type LockReq struct {
	Ino Ino
	Lock
	// Waiter numbers the queued request if it cannot be granted at once; 0 does not wait. A node never reuses a number.
	// A repeated request with the same number keeps its place in the queue.
	Waiter uint64
	// Cancel removes the waiter from the queue; a lock that was already granted stays. Later requests with its number
	// are refused.
	Cancel bool
}

// LockAnswer answers a LockReq.
type LockAnswer struct {
	Granted bool
	Version uint64 // order of the grants of a home
}

// Locks provides the advisory locks of a home. They end with the last close of the file on a node, or with the node.
type Locks interface {
	// Lock grants q, or queues it: the client is woken when the lock may have been granted. It returns EAGAIN if q does
	// not wait, and EDEADLK for a deadlock.
	Lock(ctx context.Context, by Holder, q LockReq) (LockAnswer, error)
	// TestLock returns a lock that conflicts with l, and its node; Unlocked if there is none.
	TestLock(ctx context.Context, by Holder, ino Ino, l Lock) (NodeID, Lock, error)
}

// Woken is a client with queued lock requests.
type Woken interface {
	// Wake makes the waiters repeat their requests. Unknown waiters are no error.
	Wake(waiters []uint64)
}
