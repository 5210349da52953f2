package stagein

import (
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// guess is a speculation: what was staged from an offset on, at which a member
// is believed to begin, until the seam proves or refutes it.
type guess struct {
	r    *region
	at   int64           // where the member begins
	held []*source.Piece // from the region's start to at
	from *source.Region  // what the speculation reads
	push *pusher

	pending *manifest.Spool
	last    *object // that something was put to, and whose record is not in pending
	pieces  []Piece // of the member at the end
	seam    *Seam   // for the next region

	right bool
	wrong bool
	err   error // of the chain that replaced the speculation
}

// errReplaced stops the chain of a speculation that was wrong; another one has
// staged the region in its place.
var errReplaced = errors.New("replaced")

// run speculates, and makes good for it if that was wrong.
func (g *guess) run(held []*source.Piece) error {
	g.pending = g.r.cfg.Scratch.Spool()
	defer g.pending.Close()
	c := g.r.chain(g.r.ctx, g.at)
	c.guess, g.push = g, c.push
	c.some = true // the header that was found
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
	if !g.right && !g.wrong {
		// Whatever stopped it counts only if the guess was right.
		if e := g.look(true); e != nil {
			err = e
		}
	}
	archive.ReleaseAll(g.held)
	err = c.end(err)
	if errors.Is(err, errReplaced) || g.wrong {
		return g.err
	}
	return err
}

// keep remembers what is not known to be true yet.
func (g *guess) keep(rec manifest.Record) error {
	g.last = nil
	return g.pending.Add(rec)
}

// look verifies the guess if the seam is there; it waits for it if wait.
func (g *guess) look(wait bool) error {
	if g.right {
		return g.r.ctx.Err()
	}
	seam, err := g.r.seam(wait)
	if err != nil || seam == nil {
		return err
	}
	if err := g.verify(seam); err != nil {
		return err
	}
	g.right = true
	if err := g.pending.Each(g.r.record); err != nil {
		return err
	}
	g.pending.Close()
	g.r.pieces = append(g.r.pieces, g.pieces...)
	g.last, g.pieces = nil, nil
	if g.seam != nil {
		return g.r.out(g.seam)
	}
	return nil
}

// verify stages what was held. It is errReplaced if that did not end where the
// speculation began; then the whole region has been staged.
func (g *guess) verify(seam *Seam) error {
	c := g.r.chain(g.r.ctx, g.r.part.Off)
	c.landing = g.at
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
	if errors.Is(err, errLanded) && c.g.Mtime == nil {
		return nil
	}
	if errors.Is(err, errLanded) {
		err = g.restart(c)
	}
	g.wrong, g.err = true, err
	return errReplaced
}

// restart goes on from the landing although it is right: a global header, of
// which the speculation knew nothing, changes what it staged.
func (g *guess) restart(c *chain) error {
	if err := g.undo(); err != nil {
		return err
	}
	again := g.r.read(g.at)
	defer again.Close()
	next := g.r.chain(g.r.ctx, g.at)
	next.t.More = again.Next
	return next.stage(&Seam{At: g.at, Some: c.some, Mtime: c.g.Mtime})
}

// undo takes back what the speculation stored.
func (g *guess) undo() error {
	g.from.Close()
	g.push.cancel()
	_ = g.push.wait() // what failed does not count any more
	g.r.count.bytes.Add(-g.push.bytes.Load())
	g.r.count.again.Add(1)
	rm, ctx := errgroup.WithContext(g.r.ctx)
	rm.SetLimit(g.r.cfg.Workers)
	remove := func(o *object) {
		for _, node := range o.order {
			rm.Go(func() error {
				if err := g.r.cfg.Target.Remove(ctx, node, o.ino); err != nil {
					return fmt.Errorf("take back %v from %s: %w", o.ino, g.r.host(node), err)
				}
				return nil
			})
		}
	}
	if g.last != nil {
		remove(g.last)
	}
	err := g.pending.Each(func(rec manifest.Record) error {
		o := &object{path: rec.Path, ino: rec.Attr.Ino, layout: rec.Attr.Layout}
		if rec.Hardlink != "" || rec.Attr.Mode&source.TypeMask != source.TypeRegular || rec.Attr.Size == 0 {
			return ctx.Err()
		}
		if err := g.r.order(o); err != nil {
			return err
		}
		remove(o)
		return ctx.Err()
	})
	g.pending.Close()
	g.last, g.pieces, g.seam = nil, nil, nil
	if e := rm.Wait(); e != nil {
		return e
	}
	return err
}
