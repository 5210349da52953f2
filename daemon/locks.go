package daemon

import (
	"context"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/locks"
)

// wake has the client of a node ask again for the locks that it waits for.
func (d *Daemon) wake(ctx context.Context, id metadata.NodeID, waiters []uint64) error {
	if id == d.job.Self {
		d.wakeHere(waiters)
		return nil
	}
	c := rpc.Call{Op: wire.OpWake, Body: &wire.WakeReq{Waiters: waiters}}
	return d.peers.To(id).Do(ctx, &c)
}

func (d *Daemon) wakeHere(waiters []uint64) {
	if c := d.client.Load(); c != nil {
		(*c).Wake(waiters)
	}
}

func (d *Daemon) lockHandlers() map[wire.Op]rpc.Handler {
	m := d.meta
	return map[wire.Op]rpc.Handler{
		wire.OpLock: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.LockReq) (node.Appender, error) {
			a, err := m.Lock(ctx, metadata.Holder{Node: r.Peer, Run: q.Run}, q.Req)
			return &wire.LockResp{Answer: a}, err
		}),
		wire.OpTestLock: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.LockReq) (node.Appender, error) {
			id, l, err := m.TestLock(ctx, metadata.Holder{Node: r.Peer, Run: q.Run}, q.Req.Ino, q.Req.Lock)
			return &wire.HeldLockResp{Node: id, Lock: l}, err
		}),
		wire.OpWake: node.Handle(func(_ context.Context, q *wire.WakeReq) (node.Appender, error) {
			d.wakeHere(q.Waiters)
			return nil, nil
		}),
	}
}

// FileLocks is what this node, as a home, has of locks.
func (d *Daemon) FileLocks() locks.Stats { return d.meta.locks.Stats() }
