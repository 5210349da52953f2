package remote

import (
	"context"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

var _ metadata.Locks = (*Store)(nil)

// Lock implements metadata.Locks.
func (s *Store) Lock(ctx context.Context, by metadata.Holder, q metadata.LockReq) (metadata.LockAnswer, error) {
	var r wire.LockResp
	err := do(ctx, s.c, wire.OpLock, &wire.LockReq{Run: by.Run, Req: q}, &r)
	return r.Answer, err
}

// TestLock implements metadata.Locks.
func (s *Store) TestLock(ctx context.Context, by metadata.Holder, ino metadata.Ino, l metadata.Lock) (metadata.NodeID, metadata.Lock, error) {
	var r wire.HeldLockResp
	err := do(ctx, s.c, wire.OpTestLock, &wire.LockReq{Run: by.Run, Req: metadata.LockReq{Ino: ino, Lock: l}}, &r)
	return r.Node, r.Lock, err
}
