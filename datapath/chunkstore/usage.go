package chunkstore

import (
	"math"
	"sync/atomic"
	"syscall"
)

// pageSize is the allocation unit of file systems.
const pageSize = 4096

// pages rounds up to whole pages.
func pages(n int64) int64 {
	if n > math.MaxInt64-pageSize {
		return math.MaxInt64 &^ (pageSize - 1)
	}
	return (n + pageSize - 1) &^ (pageSize - 1)
}

// spread returns the most space that a write of n bytes at off can allocate.
func spread(off, n int64) int64 {
	return pages(off+n) - off&^(pageSize-1)
}

// usage counts the bytes of the store against its quota. A write reserves the most it can need before it writes, and
// settles the real amount afterwards: the quota holds at every moment, and a failed write leaves nothing reserved.
// Reservations are generous: near the quota, one of two concurrent writes may be refused although both would fit.
//
// It relies on a file system that reports allocations at once, as ext4, XFS and tmpfs do; ZFS
// reports them seconds later.
type usage struct {
	quota    int64 // 0: none
	used     atomic.Int64
	reserved atomic.Int64
	held     atomic.Int64 // used + reserved, limited by the quota
	objects  atomic.Int64
}

// reserve takes n bytes of the quota, or returns ENOSPC.
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

// settle replaces a reservation of n bytes by the bytes that were taken.
func (u *usage) settle(n, taken int64) {
	u.used.Add(taken)
	u.reserved.Add(-n)
	u.held.Add(taken - n)
}
