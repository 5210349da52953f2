package daemon

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

func (d *Daemon) shapeHandlers() map[wire.Op]rpc.Handler {
	s := d.data
	return map[wire.Op]rpc.Handler{
		wire.OpAllocate: node.Handle(func(ctx context.Context, q *wire.RangeReq) (node.Appender, error) {
			if err := live(q.Ino); err != nil {
				return nil, err
			}
			return nil, s.Allocate(ctx, q.Ino, q.Off, q.Len)
		}),
		wire.OpPunch: node.Handle(func(ctx context.Context, q *wire.RangeReq) (node.Appender, error) {
			if err := live(q.Ino); err != nil {
				return nil, err
			}
			return nil, s.Punch(ctx, q.Ino, q.Off, q.Len)
		}),
		wire.OpData: node.Handle(func(ctx context.Context, q *wire.DataReq) (node.Appender, error) {
			e, err := s.Data(ctx, q.Ino, q.Off)
			if err != nil {
				return nil, err
			}
			return &wire.ExtentResp{Extent: e}, nil
		}),
		wire.OpAllocated: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
			n, err := s.Allocated(ctx, q.Ino)
			if err != nil {
				return nil, err
			}
			return &wire.SizeResp{Bytes: n}, nil
		}),
	}
}

// live is EROFS for an object of a dataset.
func live(ino metadata.Ino) error {
	if ino.Sealed() {
		return fmt.Errorf("object %v: %w", ino, syscall.EROFS)
	}
	return nil
}
