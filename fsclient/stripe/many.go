package stripe

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// Whole returns the node and the object that hold all of the live file a, which lies on the nodes order. It returns
// false if the file is striped or has copies.
func Whole(a *metadata.Attr, order []metadata.NodeID) (metadata.NodeID, datapath.RangeRead, bool) {
	f := fileOn(a, order)
	spans := datapath.Spans(a.Layout.Chunk(), f.first, 0, a.Size)
	if len(spans) != 1 || f.copied() {
		return 0, datapath.RangeRead{}, false
	}
	return spans[0].Node, datapath.RangeRead{Ino: f.object, Off: spans[0].Off, Len: a.Size}, true
}

// ReadMany reads small files that lie whole on the node id, without waiting for any: files of one dataset, or live
// files (datapath.ManyReader). It does not ask other nodes.
func (d *Data) ReadMany(ctx context.Context, id metadata.NodeID, rs []datapath.RangeRead, buf []byte) error {
	node, err := d.cfg.Nodes.Data(id)
	if err != nil {
		return err
	}
	many, ok := node.(datapath.ManyReader)
	if !ok {
		return fmt.Errorf("node %d does not support batch reads: %w", id, syscall.EOPNOTSUPP)
	}
	if err := many.ReadMany(ctx, rs, buf, d.cfg.VerifyReads && len(rs) > 0 && rs[0].Ino.Sealed()); err != nil {
		return err
	}
	for i := range rs {
		if rs[i].Err == nil {
			d.count(&d.readLocal, &d.readRemote, id, len(rs[i].Data))
		}
	}
	return nil
}

// Neighbours returns the wanted overflow files that ReadMany of this node reads together with the file ino.
func (d *Data) Neighbours(ino metadata.Ino, wanted func(metadata.Ino) bool) []metadata.Ino {
	node, err := d.cfg.Nodes.Data(d.cfg.Self)
	if f, ok := node.(datapath.NeighbourFinder); err == nil && ok {
		return f.Neighbours(ino, wanted)
	}
	return nil
}
