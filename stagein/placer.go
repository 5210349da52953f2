package stagein

import (
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Object is one file on the nodes that hold it.
type Object struct {
	Path   string
	Ino    metadata.Ino
	Layout metadata.Layout
	Nodes  []metadata.NodeID // of the layout, in order
}

// Placer determines where the items of a part are stored, and builds their records.
type Placer struct {
	Plan *Plan
	Part Part
	Map  cluster.Map
	// Owner chooses the owners of a scan's files, in order; nil: by hash alone.
	Owner func(it *source.Item) metadata.NodeID
}

// KeptBits are the mode bits kept. Set-user-ID and set-group-ID are cleared, as the owner changes.
const KeptBits = source.TypeMask | 0o1777

// Record builds the record of an item.
func (p *Placer) Record(it *source.Item, o *Object) manifest.Record {
	rec := manifest.Record{Path: it.Path, Target: it.Target, Hardlink: it.Hardlink}
	t := it.Mtime
	rec.Attr = metadata.Attr{
		Mode: it.Mode & KeptBits, Nlink: 1, UID: p.Plan.UID, GID: p.Plan.GID,
		Size: it.Size, Atime: t, Mtime: t, Ctime: t,
	}
	if it.Is(source.TypeSymlink) {
		rec.Attr.Size = int64(len(it.Target))
	}
	if o != nil {
		rec.Attr.Ino, rec.Attr.Layout = o.Ino, o.Layout
	}
	switch {
	case it.Hardlink == "" && it.Is(source.TypeRegular) && it.Size > 0:
		rec.From = p.origin(it)
	case p.Plan.OnError == OnErrorSkip && it.Off > 0:
		rec.From = manifest.Origin{Source: it.Source + p.Plan.Number, Off: it.Off} // for the report if it is left out
	}
	return rec
}

// origin returns the place of an item's bytes; in a compressed tar, in its unpacked data.
func (p *Placer) origin(it *source.Item) manifest.Origin {
	switch {
	case p.Plan.Kind == source.Dir:
		return manifest.Origin{Path: it.Path}
	case it.Zip != (source.ZipMember{}):
		return archive.ZipOrigin(it, it.Source+p.Plan.Number)
	}
	return manifest.Origin{Source: it.Source + p.Plan.Number, Off: it.Off, Head: it.Head, Check: it.Check, Sparse: it.Sparse != nil}
}

// Place determines where the bytes of the item with the number ino are stored.
func (p *Placer) Place(it *source.Item, ino metadata.Ino) (*Object, error) {
	o := &Object{Path: it.Path, Ino: ino}
	switch {
	case !it.Is(source.TypeRegular):
	case it.Size > p.Plan.Stripe:
		o.Layout = metadata.Layout{Kind: metadata.Striped, ChunkSize: StripeChunk, Epoch: p.Map.Epoch}
	case p.Owner != nil && it.Size > 0:
		o.Layout = metadata.Layout{Kind: metadata.Local, Node: p.Owner(it)}
	case len(p.Part.Items) > 0 && p.Plan.Kind == source.Dir && p.Part.Try == 0:
		o.Layout = metadata.Layout{Kind: metadata.Local, Node: p.Part.Node} // the plan has chosen the owner
	default:
		o.Layout = metadata.Layout{Kind: metadata.Local, Node: p.Map.FileOwner(it.Path)}
	}
	return o, p.Locate(o)
}

// Locate finds the nodes of an object.
func (p *Placer) Locate(o *Object) error {
	if o.Layout.Kind == metadata.Striped && o.Layout.Epoch > p.Map.Epoch {
		return fmt.Errorf("%q is striped by the map of epoch %d, this node has %d: %w",
			o.Path, o.Layout.Epoch, p.Map.Epoch, syscall.ESTALE)
	}
	o.Nodes = p.Map.Order(o.Ino, o.Layout)
	if len(o.Nodes) == 0 {
		return fmt.Errorf("%q: no node to put it on: %w", o.Path, syscall.EHOSTDOWN)
	}
	return nil
}
