package daemon

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/copies"
)

// copyGuard refuses reads of objects that have a copy elsewhere (metadata.Ino.Copied) while that one may be
// newer (package copies). The reader asks the other node, or again.
type copyGuard struct {
	lease copies.Lease
	view  func() cluster.View
	self  metadata.NodeID
}

// check returns EHOSTDOWN if a reader with a map of the epoch e may not read a copy here.
func (g *copyGuard) check(e metadata.Epoch) error {
	if !g.lease.Valid(time.Now()) {
		return fmt.Errorf("copies are not served: no leader has answered this node lately: %w", syscall.EHOSTDOWN)
	}
	if n, _ := g.view().Map.Node(g.self); !copies.Serves(n, e) {
		return fmt.Errorf("copies are not served to a node with the map of epoch %d: %s is %v since %d: %w", e, n.Host, n.State, n.Since, syscall.EHOSTDOWN)
	}
	return nil
}

// read calls fn, which reads an object, with the check before and after.
func (g *copyGuard) read(object metadata.Ino, e metadata.Epoch, fn func() error) error {
	if !object.Copied() {
		return fn()
	}
	if err := g.check(e); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	return g.check(e)
}

// guard is h, which reads the object whose number is first in the request, with the checks.
func (g *copyGuard) guard(h rpc.Handler) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		return g.read(wire.InoOf(r.Body), r.Epoch, func() error { return h(ctx, r, resp) })
	}
}

// localData is this node's data for its own client.
type localData struct {
	dataset.Local
	copies *copyGuard
}

var (
	_ datapath.Store           = localData{}
	_ datapath.Opener          = localData{}
	_ datapath.Piper           = localData{}
	_ datapath.PresentReader   = localData{}
	_ datapath.ManyReader      = localData{}
	_ datapath.NeighbourFinder = localData{}
)

// epoch is that of the node's own map.
func (l localData) epoch() metadata.Epoch { return l.copies.view().Map.Epoch }

// ReadAt implements datapath.Reader.
func (l localData) ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (n int, err error) {
	if !ino.Copied() {
		return l.Local.ReadAt(ctx, ino, p, off)
	}
	err = l.copies.read(ino, l.epoch(), func() error {
		n, err = l.Local.ReadAt(ctx, ino, p, off)
		return err
	})
	return n, err
}

// Data implements datapath.Shaper.
func (l localData) Data(ctx context.Context, ino metadata.Ino, off int64) (e datapath.Extent, err error) {
	err = l.copies.read(ino, l.epoch(), func() error {
		e, err = l.Local.Data(ctx, ino, off)
		return err
	})
	return e, err
}
