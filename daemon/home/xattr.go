package home

import (
	"context"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

func (s *Server) xattrHandlers() node.Handlers {
	return node.Handlers{
		wire.OpGetxattr: node.Handle(func(ctx context.Context, q *wire.XattrReq) (node.Appender, error) {
			v, err := s.Getxattr(ctx, q.Ino, q.Name)
			if err != nil {
				return nil, err
			}
			return &wire.BytesResp{B: v}, nil
		}),
		wire.OpSetxattr: node.Handle(func(ctx context.Context, q *wire.SetxattrReq) (node.Appender, error) {
			return nil, s.Setxattr(ctx, q.Ino, q.Xattr)
		}),
		wire.OpListxattr: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			names, err := s.Listxattr(ctx, q.Ino)
			if err != nil {
				return nil, err
			}
			return &wire.NamesResp{Names: names}, nil
		}),
		wire.OpRemovexattr: node.Handle(func(ctx context.Context, q *wire.XattrReq) (node.Appender, error) {
			return nil, s.Removexattr(ctx, q.Ino, q.Name)
		}),
	}
}
