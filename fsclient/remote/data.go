package remote

import (
	"context"
	"errors"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// Data is the file data of another node.
type Data struct {
	c rpc.Caller
}

var (
	_ datapath.Store         = (*Data)(nil)
	_ datapath.SummedReader  = (*Data)(nil)
	_ datapath.Piper         = (*Data)(nil)
	_ datapath.PresentReader = (*Data)(nil)
)

// NewData returns the data of the node that c calls.
func NewData(c rpc.Caller) *Data { return &Data{c: c} }

// ReadAt implements datapath.Reader.
func (d *Data) ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	return d.readAt(ctx, wire.OpRead, ino, p, off)
}

// ReadSummed implements datapath.SummedReader.
func (d *Data) ReadSummed(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	return d.readAt(ctx, wire.OpReadSummed, ino, p, off)
}

// ReadIfPresent implements datapath.PresentReader.
func (d *Data) ReadIfPresent(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	return d.readAt(ctx, wire.OpReadIfPresent, ino, p, off)
}

func (d *Data) readAt(ctx context.Context, op wire.Op, ino metadata.Ino, p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		part := p[n:min(len(p), n+wire.MaxData)]
		call := rpc.Call{Op: op, Body: &wire.ReadReq{Ino: ino, Off: off + int64(n), Len: uint32(len(part))}, Into: part}
		var sum wire.SumResp
		if op != wire.OpRead {
			call.Reply = &sum
		}
		if err := d.c.Do(ctx, &call); err != nil {
			return 0, err
		}
		if op != wire.OpRead {
			if err := wire.CheckSum(part[:call.N], sum.Sum); err != nil {
				return 0, err
			}
		}
		n += call.N
		if call.N < len(part) {
			break
		}
	}
	return n, nil
}

// ReadPipe implements datapath.Piper.
func (d *Data) ReadPipe(ctx context.Context, ino metadata.Ino, to *datapath.Pipe, p []byte, off int64) (int, error) {
	if len(p) > wire.MaxData {
		return d.ReadAt(ctx, ino, p, off)
	}
	call := rpc.Call{Op: wire.OpRead, Body: &wire.ReadReq{Ino: ino, Off: off, Len: uint32(len(p))}, Into: p, Pipe: to}
	if err := d.c.Do(ctx, &call); err != nil {
		return 0, err
	}
	return call.N, nil
}

// WriteAt implements datapath.Writer. If it fails, any part of p may have been written. The peer verifies the checksum
// of staged data; after a mismatch the data is sent again.
func (d *Data) WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	for n := 0; n < len(p); n += wire.MaxData {
		part := p[n:min(len(p), n+wire.MaxData)]
		if err := d.write(ctx, wire.WriteReq{Ino: ino, Off: off + int64(n)}, part); err != nil {
			return err
		}
	}
	return nil
}

func (d *Data) write(ctx context.Context, q wire.WriteReq, p []byte) error {
	call := rpc.Call{Op: wire.OpWrite, Body: &q, Data: [][]byte{p}}
	if !q.Ino.Sealed() {
		return d.c.Do(ctx, &call)
	}
	call.Op, call.Body = wire.OpWriteSummed, &wire.SummedWriteReq{WriteReq: q, Sum: wire.Sum(p)}
	err := d.c.Do(ctx, &call)
	for try := 1; try < summedTries && errors.Is(err, syscall.EBADMSG); try++ {
		err = d.c.Do(ctx, &call)
	}
	return err
}

// summedTries bounds how often bytes are sent whose checksum does not match.
const summedTries = 3

// Sync implements datapath.Writer.
func (d *Data) Sync(ctx context.Context, ino metadata.Ino) error {
	return do(ctx, d.c, wire.OpSync, &wire.InoReq{Ino: ino}, nil)
}

// Truncate implements datapath.Remover.
func (d *Data) Truncate(ctx context.Context, ino metadata.Ino, size int64) error {
	return do(ctx, d.c, wire.OpTruncate, &wire.TruncateReq{Ino: ino, Size: size}, nil)
}

// Remove implements datapath.Remover.
func (d *Data) Remove(ctx context.Context, ino metadata.Ino) error {
	return do(ctx, d.c, wire.OpRemoveObject, &wire.InoReq{Ino: ino}, nil)
}

// Space implements datapath.Meter.
func (d *Data) Space(ctx context.Context) (datapath.Space, error) {
	var r wire.SpaceResp
	err := do(ctx, d.c, wire.OpSpace, nil, &r)
	return r.Space, err
}
