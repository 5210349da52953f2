package fsclient

import (
	"context"

	"github.com/bivouacfs/bivouac/metadata"
)

// Lock acquires or releases a lock on a file that is open here; see locks.Locker.
func (c *Client) Lock(ctx context.Context, ino metadata.Ino, l metadata.Lock, wait bool) error {
	return c.locks.Lock(ctx, ino, l, wait)
}

// TestLock returns a lock that conflicts with l, and the node of its owner; if there is none, a lock of type Unlocked.
func (c *Client) TestLock(ctx context.Context, ino metadata.Ino, l metadata.Lock) (metadata.NodeID, metadata.Lock, error) {
	return c.locks.Test(ctx, ino, l)
}

// UnlockAll releases all locks of an owner on a file.
func (c *Client) UnlockAll(ctx context.Context, ino metadata.Ino, kind metadata.LockKind, owner uint64) error {
	return c.locks.UnlockAll(ctx, ino, kind, owner)
}

// Wake implements metadata.Woken.
func (c *Client) Wake(waiters []uint64) { c.locks.Wake(waiters) }
