package remote

import (
	"context"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// Allocate implements datapath.Shaper.
func (d *Data) Allocate(ctx context.Context, ino metadata.Ino, off, n int64) error {
	return do(ctx, d.c, wire.OpAllocate, &wire.RangeReq{Ino: ino, Off: off, Len: n}, nil)
}

// Punch implements datapath.Shaper.
func (d *Data) Punch(ctx context.Context, ino metadata.Ino, off, n int64) error {
	return do(ctx, d.c, wire.OpPunch, &wire.RangeReq{Ino: ino, Off: off, Len: n}, nil)
}

// Data implements datapath.Shaper.
func (d *Data) Data(ctx context.Context, ino metadata.Ino, off int64) (datapath.Extent, error) {
	var r wire.ExtentResp
	err := do(ctx, d.c, wire.OpData, &wire.DataReq{Ino: ino, Off: off}, &r)
	return r.Extent, err
}

// Allocated implements datapath.Shaper.
func (d *Data) Allocated(ctx context.Context, ino metadata.Ino) (int64, error) {
	var r wire.SizeResp
	err := do(ctx, d.c, wire.OpAllocated, &wire.InoReq{Ino: ino}, &r)
	return r.Bytes, err
}
