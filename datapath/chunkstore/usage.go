package chunkstore

import (
	"math"
	"sync/atomic"
	"syscall"
)

// pageSize is the unit in which file systems give space out.
const pageSize = 4096

// pages rounds up to whole pages.
func pages(n int64) int64 {
	if n > math.MaxInt64-pageSize {
		return math.MaxInt64 &^ (pageSize - 1)
	}
	return (n + pageSize - 1) &^ (pageSize - 1)
}

// spread is the most that a write of n bytes at off can allocate.
func spread(off, n int64) int64 {
	return pages(off+n) - off&^(pageSize-1)
}

// usage counts the store's bytes against its quota. A write reserves the most
// it can need before it touches the disk, and settles on what it took after;
// so the quota holds at every moment, and a write that fails leaves nothing
// behind but what is really on the disk. Reservations are generous, so close to
// the quota two writes at once may be refused where one after the other would
// not be.
//
// It relies on a file system that says what it has allocated at once, as ext4,
// XFS and tmpfs do; ZFS says it seconds later.
type usage struct {
	quota    int64 // 0 is none
	used     atomic.Int64
	reserved atomic.Int64
	held     atomic.Int64 // used + reserved, what the quota bounds
	objects  atomic.Int64
}

// reserve takes n bytes of the quota, or returns ENOSPC and takes nothing.
func (u *usage) reserve(n int64) error {
	for {
		held := u.held.Load()
		if u.quota > 0 && n > 0 && n > u.quota-held {
			return syscall.ENOSPC
		}
		if u.held.CompareAndSwap(held, held+n) {
			u.reserved.Add(n)
			return nil
		}
	}
}

// settle gives a reservation of n bytes back and counts what was taken.
func (u *usage) settle(n, taken int64) {
	u.used.Add(taken)
	u.reserved.Add(-n)
	u.held.Add(taken - n)
}
