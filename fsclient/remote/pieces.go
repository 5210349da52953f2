package remote

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

var _ datapath.PiecePutter = (*Data)(nil)

// PutPieces implements datapath.PiecePutter. Pieces whose checksum does not match are sent again.
func (d *Data) PutPieces(ctx context.Context, ps []datapath.PiecePut) ([]error, error) {
	errs, err := d.putPieces(ctx, ps)
	for try := 1; try < summedTries && err == nil; try++ {
		var bad []int
		var again []datapath.PiecePut
		for i, e := range errs {
			if errors.Is(e, syscall.EBADMSG) {
				bad, again = append(bad, i), append(again, ps[i])
			}
		}
		if len(bad) == 0 {
			break
		}
		var es []error
		es, err = d.putPieces(ctx, again)
		for k, e := range es {
			errs[bad[k]] = e
		}
	}
	return errs, err
}

// putPieces makes the call once.
func (d *Data) putPieces(ctx context.Context, ps []datapath.PiecePut) ([]error, error) {
	q := wire.PutPiecesReq{Heads: make([]wire.PieceHeader, len(ps))}
	var data [][]byte
	for i := range ps {
		p := &ps[i]
		q.Heads[i] = wire.PieceHeader{Ino: p.Ino, Off: p.Off, Len: uint32(p.Len()), Sum: p.Sum}
		data = append(data, p.Data...)
	}
	var r wire.PutPiecesResp
	call := rpc.Call{Op: wire.OpPutPieces, Body: &q, Reply: &r, Data: data}
	if err := d.c.Do(ctx, &call); err != nil {
		return nil, err
	}
	if len(r.Status) != len(ps) {
		return nil, fmt.Errorf("%d of %d pieces answered: %w", len(r.Status), len(ps), syscall.EPROTO)
	}
	errs := make([]error, len(ps))
	for i, no := range r.Status {
		if no != 0 {
			errs[i] = fmt.Errorf("inode %v at %d: %w", ps[i].Ino, ps[i].Off, no)
		}
	}
	return errs, nil
}
