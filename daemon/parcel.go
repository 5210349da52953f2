package daemon

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// PutAll implements stagein.Others.
func (o others) PutAll(ctx context.Context, to metadata.NodeID, ps []datapath.PiecePut) ([]error, error) {
	return target{d: o.d}.PutAll(ctx, to, ps)
}

// handleParcels stores small pieces of datasets, each if it is what was sent. One
// that is not, or for which there is no room, does not keep the others out.
func (d *Daemon) handleParcels(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	var q wire.PutPiecesReq
	if err := wire.Parse(r.Body, &q); err != nil {
		return err
	}
	status := make([]syscall.Errno, len(q.Heads))
	err := q.Split(r.Data, func(i int, h *wire.PieceHeader, b []byte) {
		if err := d.storeParcel(ctx, h, b); err != nil {
			var known bool
			if status[i], known = rpc.StatusOf(err); !known {
				d.log.WithError(err).WithField("peer", r.Peer).Warn("error without an errno")
			}
		}
	})
	resp.Body = &wire.PutPiecesResp{Status: status}
	return err
}

func (d *Daemon) storeParcel(ctx context.Context, h *wire.PieceHeader, b []byte) error {
	if !h.Ino.Sealed() {
		return fmt.Errorf("inode %v is of no dataset: %w", h.Ino, syscall.EINVAL)
	}
	if err := h.Check(b); err != nil {
		return err
	}
	return d.write(ctx, h.Ino, b, h.Off)
}
