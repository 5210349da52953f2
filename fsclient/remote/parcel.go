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

var _ datapath.ParcelWriter = (*Data)(nil)

// WriteParcels is datapath.ParcelWriter. What changes on the way is sent again.
func (d *Data) WriteParcels(ctx context.Context, ps []datapath.Parcel) ([]error, error) {
	errs, err := d.writeParcels(ctx, ps)
	for try := 1; try < summedTries && err == nil; try++ {
		var bad []int
		var again []datapath.Parcel
		for i, e := range errs {
			if errors.Is(e, syscall.EBADMSG) {
				bad, again = append(bad, i), append(again, ps[i])
			}
		}
		if len(bad) == 0 {
			break
		}
		var es []error
		es, err = d.writeParcels(ctx, again)
		for k, e := range es {
			errs[bad[k]] = e
		}
	}
	return errs, err
}

// writeParcels makes the call once.
func (d *Data) writeParcels(ctx context.Context, ps []datapath.Parcel) ([]error, error) {
	q := wire.ParcelsReq{Heads: make([]wire.ParcelHead, len(ps))}
	var data [][]byte
	for i := range ps {
		p := &ps[i]
		q.Heads[i] = wire.ParcelHead{Ino: p.Ino, Off: p.Off, Len: uint32(p.Len()), Sum: p.Sum}
		data = append(data, p.Data...)
	}
	call := rpc.Call{Op: wire.OpParcels, Body: q.Append(nil), Data: data}
	if err := d.c.Do(ctx, &call); err != nil {
		return nil, err
	}
	var r wire.ParcelsResp
	if err := r.Parse(call.Reply); err != nil {
		return nil, err
	}
	if len(r.Status) != len(ps) {
		return nil, fmt.Errorf("%d parcels of %d answered: %w", len(r.Status), len(ps), syscall.EPROTO)
	}
	errs := make([]error, len(ps))
	for i, no := range r.Status {
		if no != 0 {
			errs[i] = fmt.Errorf("inode %v at %d: %w", ps[i].Ino, ps[i].Off, no)
		}
	}
	return errs, nil
}
