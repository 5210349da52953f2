package metadata

import "context"

// LockKind says which locks meet: those of flock(2) do not see those of fcntl(2).
type LockKind uint8

// The kinds of locks.
const (
	PosixLock LockKind = 0 // of fcntl(2), also of open file descriptions
	FlockLock LockKind = 1
)

// LockType is what a lock allows others.
type LockType uint8

// The types of locks.
const (
	Unlocked  LockType = 0
	ReadLock  LockType = 1
	WriteLock LockType = 2
)

// MaxLockEnd is the last byte of a lock that goes on for ever.
const MaxLockEnd = 1<<63 - 1

// Lock is a lock on bytes of a file, or on the whole of it.
type Lock struct {
	Kind  LockKind
	Type  LockType
	Owner uint64 // of the client's node; its kernel knows who that is
	Start uint64
	End   uint64 // the last byte
	PID   uint32 // who to name, on the client's node
}

// LockReq asks for a lock, or with the type Unlocked for its end.
type LockReq struct {
	Ino Ino
	Lock
	// Waiter is the number, which no other one of the node has or had, under which
	// the request waits if it cannot be granted; 0 does not wait. To ask again with the
	// same number keeps the place in the queue.
	Waiter uint64
	// Cancel takes the waiter out of the queue. It may be granted already. A request
	// with its number that comes later is refused.
	Cancel bool
}

// LockAnswer answers a LockReq.
type LockAnswer struct {
	Granted bool
	Version uint64 // in the order of which a home has granted
}

// Locks is the locks of a home's files. They are advisory, and go with the last
// close of the file on a node, or with the node.
type Locks interface {
	// Lock grants q, or says that it waits: its client is woken when it may
	// have been granted. EAGAIN if it does not want to wait, EDEADLK if that
	// would be for ever.
	Lock(ctx context.Context, by Holder, q LockReq) (LockAnswer, error)
	// TestLock returns a lock that stands in the way of l, and whose it is;
	// Unlocked if there is none.
	TestLock(ctx context.Context, by Holder, ino Ino, l Lock) (NodeID, Lock, error)
}

// Woken is a client that waits for locks.
type Woken interface {
	// Wake has the waiters ask again. Those that are not known are no error.
	Wake(waiters []uint64)
}
