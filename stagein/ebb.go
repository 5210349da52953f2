package stagein

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Bars is the hash from which on a node has no files of a part's compressed tars, by node: it has
// all others that belong there. A bar falls while they are read, and never rises. It is JSON.
type Bars map[metadata.NodeID]uint64

// keeps reports whether a file of a hash is on all of the nodes that it belongs to.
func (b Bars) keeps(h uint64, nodes []metadata.NodeID) bool {
	for _, id := range nodes {
		if bar, set := b[id]; set && h >= bar {
			return false
		}
	}
	return true
}

// Ebb is how far what is here of a part's compressed tars has gone back. Files at or above Now are
// not here, but for those below Was, which may be. It is JSON.
type Ebb struct {
	Now Bars `json:"now"`
	Was Bars `json:"was,omitempty"`
}

// Access is how a part's compressed tars are read when they have been staged. It is JSON.
type Access struct {
	Spills bool              `json:"spills,omitempty"` // some of their files stay in them
	Places map[uint32][]byte `json:"places,omitempty"` // unpack.Places, by the number of the tar
}

// Admit takes over how a part's compressed tars are read.
func (o *Origins) Admit(a Access) error {
	o.Spills = o.Spills || a.Spills
	for n, b := range a.Places {
		if int(n) >= len(o.Sources) {
			return fmt.Errorf("places in source %d of %d: %w", n, len(o.Sources), syscall.EPROTO)
		}
		o.Sources[n].Places = b
	}
	return nil
}

// portion is how much of the nodes' room is for a part: as much as it has of what all parts
// unpack to, or have to read if the other is not known.
func (p *Part) portion(all []Part) float64 {
	var sum int64
	for i := range all {
		sum += all[i].Weight
	}
	switch {
	case len(all) < 2:
		return 1
	case sum > 0:
		return float64(p.Weight) / float64(sum)
	}
	return 1 / float64(len(all))
}

// begin finds out what room there is, beside what is here already.
func (x *spiller) begin(ctx context.Context) error {
	if x == nil {
		return nil
	}
	if err := x.remove(ctx, x.again); err != nil {
		return err
	}
	x.again, x.was = nil, maps.Clone(x.bars)
	sum := int64(0)
	var away []metadata.NodeID
	for id := range x.here {
		free, known := x.s.cfg.Plan.Free[id]
		if x.s.cfg.Free != nil {
			free, known = x.s.cfg.Free(id)
		}
		if !known {
			away = append(away, id)
			continue
		}
		x.left[id] = x.mine(id, free)
		x.room[id] += x.left[id]
		sum += x.room[id]
	}
	if x.s.cfg.Resume != nil {
		x.s.count.bytes.Store(x.held)
	}
	least := x.s.cfg.Part.Least
	x.sure = least > 0 && least-least/headers > sum
	for _, id := range away {
		if !x.sure { // others will find room for what it was to have
			x.left[id], x.room[id] = 1<<50, 1<<50
		}
	}
	if x.sure && x.s.cfg.Resume == nil {
		x.lowest(least - least/headers)
		x.was = maps.Clone(x.bars)
		return x.keep()
	}
	return nil
}

// mine is what this share may put on a node that has so much free: beside it others fill their
// portions of what was free in the beginning.
func (x *spiller) mine(id metadata.NodeID, free int64) int64 {
	left := max(usable(free), 0)
	if x.portion == 1 {
		return left
	}
	here := x.room[id] // of an earlier try
	all, known := x.s.cfg.Plan.Free[id]
	if !known {
		all = free + here
	}
	return max(min(left, int64(x.portion*float64(max(usable(all), 0)))-here), 0)
}

// keep has it kept how far what is stored goes back.
func (x *spiller) keep() error {
	if x.s.cfg.Ebbed == nil {
		return nil
	}
	if err := x.s.cfg.Ebbed(Ebb{Now: maps.Clone(x.bars), Was: maps.Clone(x.was)}); err != nil {
		return fmt.Errorf("what goes back to the source: %w", err)
	}
	return nil
}

// lowest sets the bars by what all is at the least: hardly anything is taken back then.
func (x *spiller) lowest(all int64) {
	share := float64(all) / float64(len(x.here))
	for id, room := range x.room {
		if part := float64(room) / share; part < 1 {
			x.bars[id] = uint64(part * math.MaxUint64)
		}
	}
}

// restored takes note of a record of an earlier try. What had to go from the nodes, and
// may be there, goes when all are known.
func (x *spiller) restored(rec *manifest.Record) error {
	if x == nil || !hasData(rec) {
		return nil
	}
	if rec.Attr.Layout.Kind == metadata.Spilled {
		x.some = true
		return nil
	}
	o := &object{path: rec.Path, ino: rec.Attr.Ino, layout: rec.Attr.Layout}
	if err := x.s.order(o); err != nil {
		return err
	}
	k := kept{spillHash(x.s.cfg.Map.Seed, rec.Path), o.ino, rec.Attr.Size, rec.Attr.Size}
	if rec.From.Sparse {
		k.takes = 0
	}
	if x.gone(rec, o.order) {
		x.some = true
		if x.was.keeps(k.h, o.order) {
			x.again = append(x.again, taken{k, o.order})
		}
		return nil
	}
	x.hold(k, o)
	x.held += k.size
	for i, id := range o.order {
		x.room[id] += takesOf(o, k.takes, i)
	}
	return nil
}

// hasData reports whether a record is of a file that takes room.
func hasData(rec *manifest.Record) bool {
	return rec.Hardlink == "" && rec.Attr.Mode&source.TypeMask == source.TypeRegular && rec.Attr.Size > 0
}

// gone reports whether a file that was stored on some nodes has been taken back.
func (x *spiller) gone(rec *manifest.Record, order []metadata.NodeID) bool {
	return !x.bars.keeps(spillHash(x.s.cfg.Map.Seed, rec.Path), order)
}

// taken is a file that is taken back from its nodes.
type taken struct {
	kept
	order []metadata.NodeID
}

// free counts a file out.
func (x *spiller) free(k kept, id metadata.NodeID, wide bool) taken {
	o := &object{ino: k.ino, layout: metadata.Layout{Kind: metadata.Local, Node: id}, order: []metadata.NodeID{id}}
	if wide {
		o.layout = metadata.Layout{Kind: metadata.Striped, ChunkSize: stripeChunk, Epoch: x.s.cfg.Map.Epoch}
		o.order = x.s.cfg.Map.Order(k.ino, o.layout)
	}
	for i, id := range o.order {
		x.left[id] += takesOf(o, k.takes, i)
	}
	return taken{k, o.order}
}

// evict takes files back, when all of them is stored and the bars are known for good.
func (x *spiller) evict(gone []taken) error {
	if len(gone) == 0 {
		return nil
	}
	x.some = true
	if err := x.push.settled(); err != nil {
		return err
	}
	if err := x.keep(); err != nil {
		return err
	}
	if err := x.remove(x.push.ctx, gone); err != nil {
		return err
	}
	x.was = maps.Clone(x.bars)
	return nil
}

func (x *spiller) remove(ctx context.Context, gone []taken) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(x.s.cfg.Workers)
	for _, t := range gone {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return x.s.takeBack(ctx, &object{ino: t.ino, order: t.order})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if x.push == nil {
		return nil // this share has not stored them
	}
	for _, t := range gone {
		x.s.count.bytes.Add(-t.size)
		for _, id := range t.order {
			x.s.count.to(id).Add(-t.takes / int64(len(t.order)))
		}
	}
	return nil
}

// Access is how what was staged is read, when Run has returned.
func (s *Share) Access() Access {
	if s.spill == nil {
		return Access{}
	}
	return Access{Spills: s.spill.some, Places: s.spill.places}
}

// Settle copies the records of a share that has run, with those of what was taken back as
// those of files that stay in the source.
func (s *Share) Settle(from io.Reader, to io.Writer) error {
	r, w := manifest.NewReader(from), manifest.NewWriter(to)
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w.Close()
		}
		if err == nil {
			err = s.settle(&rec)
		}
		if err == nil {
			err = w.Add(rec)
		}
		if err != nil {
			return fmt.Errorf("records of %s: %w", s.cfg.Plan.Source, err)
		}
	}
}

func (s *Share) settle(rec *manifest.Record) error {
	if s.spill == nil || !hasData(rec) || rec.Attr.Layout.Kind == metadata.Spilled {
		return nil
	}
	o := &object{path: rec.Path, ino: rec.Attr.Ino, layout: rec.Attr.Layout}
	if err := s.order(o); err != nil {
		return err
	}
	if s.spill.gone(rec, o.order) {
		rec.Attr.Layout = metadata.Layout{Kind: metadata.Spilled, ChunkSize: rec.Attr.Layout.ChunkSize}
	}
	return nil
}
