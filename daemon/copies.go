package daemon

import (
	"context"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/rebuild"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// newRebuilder returns the Rebuilder that restores copies lost with a node.
func (d *Daemon) newRebuilder() *rebuild.Rebuilder {
	return rebuild.New(rebuild.Config{
		Node: d, Run: d.run, Guard: d.copies, Data: d.data, Parts: chunkstore.Parts,
		List: func(part uint8) ([]metadata.Ino, error) {
			return d.data.List(part, func(i metadata.Ino) bool { return !i.Sealed() })
		},
		Attr: func(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
			var r wire.AttrResp
			err := d.To(ino.Home()).Do(ctx, &rpc.Call{Op: wire.OpGetattr, Body: &wire.InoReq{Ino: ino}, Reply: &r})
			return r.Attr, err
		},
		Pace: rate.New(copyRate, nil),
	})
}

// copySpare returns the part of the capacity that rebuilt copies leave to writes: half of what datasets leave.
func (d *Daemon) copySpare(capacity int64) int64 { return d.job.Scratch.Of(capacity) / 2 }

// homeData is this node's data, as its home uses it.
type homeData struct {
	*chunkstore.Store
	copies *rebuild.Guard
}

// Remove implements datapath.Remover.
func (h homeData) Remove(ctx context.Context, ino metadata.Ino) error {
	return h.copies.Remove(ctx, ino, h.Store.Remove)
}

// localData is this node's data, as its own client uses it.
type localData struct {
	dataset.Local
	copies *rebuild.Guard
	epoch  func() metadata.Epoch // epoch of the node's own map
}

var (
	_ datapath.Store           = localData{}
	_ datapath.Opener          = localData{}
	_ datapath.Piper           = localData{}
	_ datapath.PresentReader   = localData{}
	_ datapath.ManyReader      = localData{}
	_ datapath.NeighbourFinder = localData{}
)

// ReadAt implements datapath.Reader.
func (l localData) ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (n int, err error) {
	if !ino.Copied() {
		return l.Local.ReadAt(ctx, ino, p, off)
	}
	err = l.copies.Read(ino, l.epoch(), func() error {
		n, err = l.Local.ReadAt(ctx, ino, p, off)
		return err
	})
	return n, err
}

// Data implements datapath.Shaper.
func (l localData) Data(ctx context.Context, ino metadata.Ino, off int64) (e datapath.Extent, err error) {
	err = l.copies.Read(ino, l.epoch(), func() error {
		e, err = l.Local.Data(ctx, ino, off)
		return err
	})
	return e, err
}

// WriteAt implements datapath.Writer.
func (l localData) WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	return l.copies.Write(ino, l.epoch(), func() error { return l.Local.WriteAt(ctx, ino, p, off) })
}

// Truncate implements datapath.Remover.
func (l localData) Truncate(ctx context.Context, ino metadata.Ino, size int64) error {
	return l.copies.Write(ino, l.epoch(), func() error { return l.Local.Truncate(ctx, ino, size) })
}

// Remove implements datapath.Remover.
func (l localData) Remove(ctx context.Context, ino metadata.Ino) error {
	return l.copies.Write(ino, l.epoch(), func() error { return l.Local.Remove(ctx, ino) })
}

// Allocate implements datapath.Shaper.
func (l localData) Allocate(ctx context.Context, ino metadata.Ino, off, n int64) error {
	return l.copies.Write(ino, l.epoch(), func() error { return l.Local.Allocate(ctx, ino, off, n) })
}

// Punch implements datapath.Shaper.
func (l localData) Punch(ctx context.Context, ino metadata.Ino, off, n int64) error {
	return l.copies.Write(ino, l.epoch(), func() error { return l.Local.Punch(ctx, ino, off, n) })
}
