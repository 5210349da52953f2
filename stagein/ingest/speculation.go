package ingest

import (
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// speculation stages members from an offset at which a member is believed to begin, until the boundary of the region
// before proves or refutes that.
type speculation struct {
	r    *region
	at   int64           // where the member is believed to begin
	held []*source.Piece // from the region's start to at
	from *source.Region  // the region that the speculation reads
	push *pusher

	pending  *manifest.Spool
	last     *stagein.Object // has puts, but no record in pending yet
	pieces   []stagein.Piece // of the member cut by the region's end
	boundary *Boundary       // for the next region

	proved  bool
	refuted bool
	err     error // of the chain that replaced the speculation
}

// errReplaced stops the chain of a refuted speculation: another chain has staged the region.
var errReplaced = errors.New("replaced")

// run speculates, and stages the region again if the speculation is refuted.
func (g *speculation) run(held []*source.Piece) error {
	g.pending = g.r.cfg.Scratch.Spool()
	defer g.pending.Close()
	c := g.r.chain(g.r.ctx, g.at)
	c.spec, g.push = g, c.push
	c.some = true // the header that search found
	c.t.More = g.from.Next
	for _, p := range held {
		if p.End() > g.at {
			c.t.Queue = append(c.t.Queue, p.Hold())
		}
		if p.Off < g.at {
			g.held = append(g.held, p.View(g.at))
		}
		p.Release()
	}
	err := c.run()
	if !g.proved && !g.refuted {
		// The chain's error counts only if the speculation is proved.
		if e := g.poll(true); e != nil {
			err = e
		}
	}
	archive.ReleaseAll(g.held)
	err = c.end(err)
	if errors.Is(err, errReplaced) || g.refuted {
		return g.err
	}
	return err
}

// keep holds back a record until the speculation is proved.
func (g *speculation) keep(rec manifest.Record) error {
	g.last = nil
	return g.pending.Add(rec)
}

// poll verifies the speculation if the boundary has arrived. If wait is true, it waits for the boundary.
func (g *speculation) poll(wait bool) error {
	if g.proved {
		return g.r.ctx.Err()
	}
	seam, err := g.r.boundary(wait)
	if err != nil || seam == nil {
		return err
	}
	if err := g.verify(seam); err != nil {
		return err
	}
	g.proved = true
	if err := g.pending.Each(g.r.record); err != nil {
		return err
	}
	g.pending.Close()
	g.r.pieces = append(g.r.pieces, g.pieces...)
	g.last, g.pieces = nil, nil
	if g.boundary != nil {
		return g.r.out(g.boundary)
	}
	return nil
}

// verify stages the held bytes. If their last member does not end where the speculation began, it stages the whole
// region and returns errReplaced.
func (g *speculation) verify(seam *Boundary) error {
	c := g.r.chain(g.r.ctx, g.r.part.Off)
	c.stopAt = g.at
	c.t.Queue, g.held = g.held, nil
	var again *source.Region
	c.t.More = func() (*source.Piece, error) {
		if again == nil {
			if err := g.undo(); err != nil {
				return nil, err
			}
			again = g.r.read(g.at)
		}
		return again.Next()
	}
	err := c.stage(seam)
	if again != nil {
		again.Close()
	}
	if errors.Is(err, errStopped) && c.g.Mtime == nil {
		return nil
	}
	if errors.Is(err, errStopped) {
		err = g.restart(c)
	}
	g.refuted, g.err = true, err
	return errReplaced
}

// restart stages the speculation's members again although it began at the right offset: a global header before that
// offset, which it did not know, changes the members.
func (g *speculation) restart(c *chain) error {
	if err := g.undo(); err != nil {
		return err
	}
	again := g.r.read(g.at)
	defer again.Close()
	next := g.r.chain(g.r.ctx, g.at)
	next.t.More = again.Next
	return next.stage(&Boundary{At: g.at, Some: c.some, Mtime: c.g.Mtime})
}

// undo removes the data that the speculation stored.
func (g *speculation) undo() error {
	g.from.Close()
	g.push.cancel()
	_ = g.push.wait() // its errors do not count
	g.r.count.bytes.Add(-g.push.bytes.Load())
	g.r.count.again.Add(1)
	rm, ctx := errgroup.WithContext(g.r.ctx)
	rm.SetLimit(g.r.cfg.Workers)
	remove := func(o *stagein.Object) {
		for _, node := range o.Nodes {
			rm.Go(func() error {
				if err := g.r.cfg.Target.Remove(ctx, node, o.Ino); err != nil {
					return fmt.Errorf("remove object %v on %s: %w", o.Ino, g.r.host(node), err)
				}
				return nil
			})
		}
	}
	if g.last != nil {
		remove(g.last)
	}
	err := g.pending.Each(func(rec manifest.Record) error {
		o := &stagein.Object{Path: rec.Path, Ino: rec.Attr.Ino, Layout: rec.Attr.Layout}
		if rec.Hardlink != "" || rec.Attr.Mode&source.TypeMask != source.TypeRegular || rec.Attr.Size == 0 {
			return ctx.Err()
		}
		if err := g.r.placer.Locate(o); err != nil {
			return err
		}
		remove(o)
		return ctx.Err()
	})
	g.pending.Close()
	g.last, g.pieces, g.boundary = nil, nil, nil
	if e := rm.Wait(); e != nil {
		return e
	}
	return err
}
