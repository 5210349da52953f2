package remote

import (
	"context"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// Data is the file data of another node.
type Data struct {
	c rpc.Caller
}

var _ datapath.Store = (*Data)(nil)

// NewData is the data of the node that c calls.
func NewData(c rpc.Caller) *Data { return &Data{c: c} }

// ReadAt is datapath.Reader.
func (d *Data) ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		part := p[n:min(len(p), n+wire.MaxData)]
		q := wire.ReadReq{Ino: ino, Off: off + int64(n), Len: uint32(len(part))}
		call := rpc.Call{Op: wire.OpRead, Body: q.Append(make([]byte, 0, 32)), Into: part}
		if err := d.c.Do(ctx, &call); err != nil {
			return 0, err
		}
		n += call.N
		if call.N < len(part) {
			break
		}
	}
	return n, nil
}

// WriteAt is datapath.Writer. If it fails, any part of p may have been written.
func (d *Data) WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	for n := 0; n < len(p); n += wire.MaxData {
		part := p[n:min(len(p), n+wire.MaxData)]
		q := wire.WriteReq{Ino: ino, Off: off + int64(n)}
		call := rpc.Call{Op: wire.OpWrite, Body: q.Append(make([]byte, 0, 32)), Data: [][]byte{part}}
		if err := d.c.Do(ctx, &call); err != nil {
			return err
		}
	}
	return nil
}

// Sync is datapath.Writer.
func (d *Data) Sync(ctx context.Context, ino metadata.Ino) error {
	return do(ctx, d.c, wire.OpSync, wire.InoReq{Ino: ino}, nil)
}

// Truncate is datapath.Remover.
func (d *Data) Truncate(ctx context.Context, ino metadata.Ino, size int64) error {
	return do(ctx, d.c, wire.OpTruncate, wire.TruncateReq{Ino: ino, Size: size}, nil)
}

// Remove is datapath.Remover.
func (d *Data) Remove(ctx context.Context, ino metadata.Ino) error {
	return do(ctx, d.c, wire.OpRemoveObject, wire.InoReq{Ino: ino}, nil)
}

// Space is datapath.Meter.
func (d *Data) Space(ctx context.Context) (datapath.Space, error) {
	var r wire.SpaceResp
	err := do(ctx, d.c, wire.OpSpace, nil, &r)
	return r.Space, err
}
