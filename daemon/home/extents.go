package home

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// extentHandlers returns the handlers that allocate and free ranges of objects, and report which ranges have data.
func (s *Server) extentHandlers() node.Handlers {
	data := s.cfg.Data
	return node.Handlers{
		wire.OpAllocate: node.Handle(func(ctx context.Context, q *wire.RangeReq) (node.Appender, error) {
			if err := refuseSealed(q.Ino); err != nil {
				return nil, err
			}
			return nil, data.Allocate(ctx, q.Ino, q.Off, q.Len)
		}),
		wire.OpPunch: node.Handle(func(ctx context.Context, q *wire.RangeReq) (node.Appender, error) {
			if err := refuseSealed(q.Ino); err != nil {
				return nil, err
			}
			return nil, data.Punch(ctx, q.Ino, q.Off, q.Len)
		}),
		wire.OpData: node.Handle(func(ctx context.Context, q *wire.DataReq) (node.Appender, error) {
			e, err := data.Data(ctx, q.Ino, q.Off)
			if err != nil {
				return nil, err
			}
			return &wire.ExtentResp{Extent: e}, nil
		}),
		wire.OpAllocated: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			n, err := data.Allocated(ctx, q.Ino)
			if err != nil {
				return nil, err
			}
			return &wire.SizeResp{Bytes: n}, nil
		}),
	}
}

// refuseSealed returns EROFS for an object of a dataset.
func refuseSealed(ino metadata.Ino) error {
	if ino.Sealed() {
		return fmt.Errorf("object %v: %w", ino, syscall.EROFS)
	}
	return nil
}
