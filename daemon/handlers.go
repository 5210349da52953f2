package daemon

import (
	"context"
	"maps"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

// inline reports whether an op is answered on the connection's reader goroutine: these ops only look something up.
func inline(op wire.Op) bool {
	switch op {
	case wire.OpLookup, wire.OpGetattr, wire.OpReadlink, wire.OpGetxattr, wire.OpLookupLease, wire.OpGetattrLease, wire.OpRevoke, wire.OpRenewLease:
		return true
	}
	return false
}

// alone reports whether an op is also answered there while the connection is otherwise idle: the next op waits for at
// most one read of the disk.
func alone(op wire.Op) bool { return op == wire.OpRead }

// handlers returns the handlers of this node.
func (d *Daemon) handlers() node.Handlers {
	h := d.home.Handlers()
	for _, part := range []node.Handlers{d.dataHandlers(), d.datasets.Handlers(), d.plans.Handlers(), d.training.Handlers(), d.controlHandlers(), d.partner.Handlers(), d.copies.Handlers(d.data, d.copySpare)} {
		maps.Copy(h, part)
	}
	for _, op := range []wire.Op{wire.OpRead, wire.OpReadIfPresent, wire.OpReadSummed, wire.OpData} {
		h[op] = d.copies.Reads(h[op])
	}
	for _, op := range []wire.Op{wire.OpWrite, wire.OpTruncate, wire.OpRemoveObject, wire.OpAllocate, wire.OpPunch} {
		h[op] = d.copies.Writes(h[op])
	}
	return h
}

func (d *Daemon) dataHandlers() map[wire.Op]rpc.Handler {
	s := d.data
	return map[wire.Op]rpc.Handler{
		wire.OpSync: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			return nil, s.Sync(ctx, q.Ino)
		}),
		wire.OpTruncate: node.Handle(func(ctx context.Context, q *wire.TruncateReq) (node.Appender, error) {
			return nil, s.Truncate(ctx, q.Ino, q.Size)
		}),
		wire.OpRemoveObject: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			return nil, d.copies.Remove(ctx, q.Ino, s.Remove)
		}),
		wire.OpSpace: func(ctx context.Context, _ *rpc.Request, resp *rpc.Response) error {
			sp, err := s.Space(ctx)
			if err == nil {
				resp.Body = &wire.SpaceResp{Space: sp}
			}
			return err
		},
	}
}

func (d *Daemon) controlHandlers() map[wire.Op]rpc.Handler {
	h := map[wire.Op]rpc.Handler{wire.OpStatus: node.HandleJSON(d.onStatus)}
	maps.Copy(h, d.Member.Handlers())
	maps.Copy(h, d.tasks.Handlers())
	maps.Copy(h, d.datasets.Fills.Handlers())
	maps.Copy(h, d.datasets.Verifier.Handlers())
	maps.Copy(h, d.stager.Handlers())
	return h
}
