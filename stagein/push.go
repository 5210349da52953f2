package stagein

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// object is where the bytes of one file go.
type object struct {
	path   string
	ino    metadata.Ino
	layout metadata.Layout
	order  []metadata.NodeID
}

// pusher stores pieces, several at a time.
type pusher struct {
	s      *Share
	g      *errgroup.Group
	parent context.Context
	ctx    context.Context // ends with parent, with cancel, or with the first failure
	cancel context.CancelFunc
	bytes  atomic.Int64
	gen    *generation // of what is put now; changed by mark, which only a chain does
}

func (s *Share) newPusher(ctx context.Context) *pusher {
	p := &pusher{s: s, parent: ctx, gen: newGeneration()}
	ctx, p.cancel = context.WithCancel(ctx)
	p.g, p.ctx = errgroup.WithContext(ctx)
	p.g.SetLimit(s.cfg.Workers)
	return p
}

// put stores b, which lies in piece, at pos of the file. It returns when the
// Puts have begun; wait tells how they ended.
func (p *pusher) put(o *object, b []byte, piece *source.Piece, pos int64) error {
	for _, sp := range datapath.Spans(o.layout.Chunk(), o.order, pos, int64(len(b))) {
		if err := p.ctx.Err(); err != nil {
			return err // others may still be putting; wait tells what it was
		}
		part := b[sp.Pos-pos:][:sp.Len]
		piece.Hold()
		gen := p.gen
		gen.refs.Add(1)
		p.g.Go(func() error {
			defer piece.Release()
			if err := p.s.cfg.Target.Put(p.ctx, sp.Node, o.ino, part, sp.Off); err != nil {
				return &putError{fmt.Errorf("%q to %s: %w", o.path, p.s.host(sp.Node), err)}
			}
			p.count(sp.Len)
			gen.release()
			return nil
		})
	}
	return nil
}

// count takes note of n bytes of a file that are there.
func (p *pusher) count(n int64) {
	p.bytes.Add(n)
	p.s.count.bytes.Add(n)
}

// wait waits for all Puts and tells the first failure. It must be called, and
// nothing can be put after it.
func (p *pusher) wait() error {
	err := p.g.Wait()
	p.cancel()
	if err == nil {
		err = p.parent.Err()
	}
	return err
}

// isCanceled reports whether err only says that something else went wrong.
func isCanceled(err error) bool { return errors.Is(err, context.Canceled) }
