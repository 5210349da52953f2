package remote

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

var _ datapath.ManyReader = (*Data)(nil)

// ReadMany implements datapath.ManyReader.
func (d *Data) ReadMany(ctx context.Context, rs []datapath.RangeRead, buf []byte, verified bool) error {
	q := wire.ReadManyReq{Summed: verified, Files: make([]wire.ReadReq, len(rs))}
	for i := range rs {
		r := &rs[i]
		q.Files[i] = wire.ReadReq{Ino: r.Ino, Off: r.Off, Len: uint32(r.Len)}
	}
	n, err := q.Check()
	if err != nil || len(rs) > wire.MaxFiles || n > int64(len(buf)) {
		return fmt.Errorf("read of %d files into %d bytes: %w", len(rs), len(buf), syscall.EINVAL)
	}
	var reply wire.ReadManyResp
	call := rpc.Call{Op: wire.OpReadMany, Body: &q, Reply: &reply, Into: buf[:n]}
	if err := d.c.Do(ctx, &call); err != nil {
		return err
	}
	return reply.Split(&q, call.Into[:call.N], func(i int, f *wire.ManyFile, b []byte) {
		r := &rs[i]
		r.Data, r.Err = b, nil
		switch {
		case f.Status != 0:
			r.Err = fmt.Errorf("inode %v: %w", r.Ino, f.Status)
		case int64(f.Len) < r.Len:
			r.Err = fmt.Errorf("inode %v: %d of %d bytes: %w", r.Ino, f.Len, r.Len, syscall.EIO)
		case verified:
			r.Err = wire.CheckSum(b, f.Sum)
		}
	})
}
