package home

import (
	"context"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// wake has the client of a node retry the lock requests that wait.
func (s *Server) wake(ctx context.Context, id metadata.NodeID, waiters []uint64) error {
	if s.near(id) {
		s.wakeHere(waiters)
		return nil
	}
	c := rpc.Call{Op: wire.OpWake, Body: &wire.WakeReq{Waiters: waiters}}
	return s.node.To(id).Do(ctx, &c)
}

func (s *Server) wakeHere(waiters []uint64) {
	if c := s.client.Load(); c != nil {
		(*c).Wake(waiters)
	}
}

func (s *Server) lockHandlers() node.Handlers {
	return node.Handlers{
		wire.OpLock: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.LockReq) (node.Appender, error) {
			a, err := s.Lock(ctx, metadata.Holder{Node: r.Peer, Run: q.Run}, q.Req)
			return &wire.LockResp{Answer: a}, err
		}),
		wire.OpTestLock: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.LockReq) (node.Appender, error) {
			id, l, err := s.TestLock(ctx, metadata.Holder{Node: r.Peer, Run: q.Run}, q.Req.Ino, q.Req.Lock)
			return &wire.HeldLockResp{Node: id, Lock: l}, err
		}),
		wire.OpWake: node.Handle(func(_ context.Context, q *wire.WakeReq) (node.Appender, error) {
			s.wakeHere(q.Waiters)
			return nil, nil
		}),
	}
}
