package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// pusher stores pieces on their nodes, several concurrently. It batches small pieces for the same node until flush.
type pusher struct {
	s       *Share
	g       *errgroup.Group
	parent  context.Context
	ctx     context.Context // ends with parent, with cancel, or at the first failure
	cancel  context.CancelFunc
	bytes   atomic.Int64
	batches *archive.Batcher
	gens    *generations // generations of the puts
}

func (s *Share) newPusher(ctx context.Context) *pusher {
	p := &pusher{s: s, parent: ctx, gens: newGenerations()}
	p.batches = archive.NewBatcher(p.send)
	ctx, p.cancel = context.WithCancel(ctx)
	p.g, p.ctx = errgroup.WithContext(ctx)
	p.g.SetLimit(s.cfg.Workers)
	return p
}

// put stores b, which lies in piece, at offset pos of the file. It sends b when a batch for its node is full, or at
// flush. Later calls and wait return its errors.
func (p *pusher) put(o *stagein.Object, b []byte, piece *source.Piece, pos int64) error {
	for _, sp := range datapath.Spans(o.Layout.Chunk(), o.Nodes, pos, int64(len(b))) {
		if err := p.ctx.Err(); err != nil {
			return err // wait returns the cause
		}
		part := b[sp.Pos-pos:][:sp.Len]
		gen := p.gens.hold()
		p.s.count.to(sp.Node).Add(sp.Len)
		p.batches.Add(sp.Node, archive.BatchedPut{
			PiecePut: datapath.PiecePut{Ino: o.Ino, Off: sp.Off, Data: [][]byte{part}, Sum: wire.PieceSum(part)},
			Held:     []*source.Piece{piece.Hold()},
			Done:     func(err error) error { return p.stored(gen, err, o, sp) },
		})
	}
	return nil
}

// stored records the result of a put.
func (p *pusher) stored(gen *generation, err error, o *stagein.Object, sp datapath.Span) error {
	if err != nil {
		return &putError{sp.Node, fmt.Errorf("%q to %s: %w", o.Path, p.s.host(sp.Node), err)}
	}
	p.count(sp.Len)
	gen.release()
	return nil
}

// flush sends all batches. It must be called before waiting for a buffer of the share's pool.
func (p *pusher) flush() { p.batches.Flush() }

// send delivers a batch in the background.
func (p *pusher) send(l *archive.Batch) {
	p.g.Go(func() error { return l.Deliver(p.ctx, p.s.cfg.Target.PutAll) })
}

// count adds n bytes to the counters of stored bytes.
func (p *pusher) count(n int64) {
	p.bytes.Add(n)
	p.s.count.bytes.Add(n)
}

// wait waits until all puts have ended and returns the first error. It must be called; no put may follow it.
func (p *pusher) wait() error {
	p.flush()
	err := p.g.Wait()
	p.cancel()
	if err == nil {
		err = p.parent.Err()
	}
	return err
}

// isCanceled reports whether err is only a consequence of another error.
func isCanceled(err error) bool { return errors.Is(err, context.Canceled) }

// place numbers an item and determines where its bytes are stored.
func (s *Share) place(it *source.Item) (*stagein.Object, error) {
	ino, err := s.rec.Ino()
	if err != nil {
		return nil, err
	}
	return s.placer.Place(it, ino)
}
