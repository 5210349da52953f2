package stagein

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// object is where the bytes of one file go.
type object struct {
	path   string
	ino    metadata.Ino
	layout metadata.Layout
	order  []metadata.NodeID
}

// pusher stores pieces, several at a time: what is put to one node until flush is
// called goes there together, as far as it is small.
type pusher struct {
	s       *Share
	g       *errgroup.Group
	parent  context.Context
	ctx     context.Context // ends with parent, with cancel, or with the first failure
	cancel  context.CancelFunc
	bytes   atomic.Int64
	batches *archive.Batcher
	gens    *generations // of what is put
}

func (s *Share) newPusher(ctx context.Context) *pusher {
	p := &pusher{s: s, parent: ctx, gens: newGenerations()}
	p.batches = archive.NewBatcher(p.send)
	ctx, p.cancel = context.WithCancel(ctx)
	p.g, p.ctx = errgroup.WithContext(ctx)
	p.g.SetLimit(s.cfg.Workers)
	return p
}

// put packs b, which lies in piece, for pos of the file, to be stored when there is
// more for the same nodes, or at flush; wait tells how that ended.
func (p *pusher) put(o *object, b []byte, piece *source.Piece, pos int64) error {
	for _, sp := range datapath.Spans(o.layout.Chunk(), o.order, pos, int64(len(b))) {
		if err := p.ctx.Err(); err != nil {
			return err // others may still be putting; wait tells what it was
		}
		part := b[sp.Pos-pos:][:sp.Len]
		gen := p.gens.hold()
		p.s.count.to(sp.Node).Add(sp.Len)
		p.batches.Add(sp.Node, archive.BatchedPut{
			PiecePut: datapath.PiecePut{Ino: o.ino, Off: sp.Off, Data: [][]byte{part}, Sum: wire.PieceSum(part)},
			Held:     []*source.Piece{piece.Hold()},
			Done:     func(err error) error { return p.stored(gen, err, o, sp) },
		})
	}
	return nil
}

// stored takes note of what became of a span of an object.
func (p *pusher) stored(gen *generation, err error, o *object, sp datapath.Span) error {
	if err != nil {
		return &putError{sp.Node, fmt.Errorf("%q to %s: %w", o.path, p.s.host(sp.Node), err)}
	}
	p.count(sp.Len)
	gen.release()
	return nil
}

// flush has all stored that was put. It is to be called before somebody waits for a
// buffer of the share's.
func (p *pusher) flush() { p.batches.Flush() }

// send has a batch delivered.
func (p *pusher) send(l *archive.Batch) {
	p.g.Go(func() error { return l.Deliver(p.ctx, p.s.cfg.Target.PutAll) })
}

// count takes note of n bytes of a file that are there.
func (p *pusher) count(n int64) {
	p.bytes.Add(n)
	p.s.count.bytes.Add(n)
}

// wait waits until all is stored, and tells the first failure. It must be called,
// and nothing can be put after it.
func (p *pusher) wait() error {
	p.flush()
	err := p.g.Wait()
	p.cancel()
	if err == nil {
		err = p.parent.Err()
	}
	return err
}

// isCanceled reports whether err only says that something else went wrong.
func isCanceled(err error) bool { return errors.Is(err, context.Canceled) }
