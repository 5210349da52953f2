package daemon

import (
	"context"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

func (d *Daemon) xattrHandlers() map[wire.Op]rpc.Handler {
	m := d.leased
	return map[wire.Op]rpc.Handler{
		wire.OpGetxattr: node.Handle(func(ctx context.Context, q *wire.XattrReq) (node.Appender, error) {
			v, err := m.Getxattr(ctx, q.Ino, q.Name)
			if err != nil {
				return nil, err
			}
			return &wire.BytesResp{B: v}, nil
		}),
		wire.OpSetxattr: node.Handle(func(ctx context.Context, q *wire.SetxattrReq) (node.Appender, error) {
			return nil, m.Setxattr(ctx, q.Ino, q.Xattr)
		}),
		wire.OpListxattr: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			names, err := m.Listxattr(ctx, q.Ino)
			if err != nil {
				return nil, err
			}
			return &wire.NamesResp{Names: names}, nil
		}),
		wire.OpRemovexattr: node.Handle(func(ctx context.Context, q *wire.XattrReq) (node.Appender, error) {
			return nil, m.Removexattr(ctx, q.Ino, q.Name)
		}),
	}
}
