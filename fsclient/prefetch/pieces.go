package prefetch

import (
	"context"
	"slices"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// leastTracked is the least number of units at which the tracker follows the reads of streams.
const leastTracked = 512

// stream records a read of a large unit; false if it is not large. Near its end it requests the next one's first piece.
func (f *follower) stream(number int, s sight) bool {
	u, ok := f.e.unit(context.Background(), f.numbers, number)
	if !ok || u.n <= f.e.whole() {
		return false
	}
	now := f.e.cfg.Now()
	x, first := f.streams.read(number, u.off, u.off+u.n, s.off, s.n, now)
	if f.t.phase == accessplan.Following {
		f.line.epoch = f.t.current
	}
	if first {
		f.line.begin(number)
	}
	if !x.ending() || x.successor > 0 {
		return true
	}
	next, ok := f.line.successor(number, func(file int) bool { return f.streams.find(file) != nil || !f.streamed(file) })
	if u, has := f.e.unit(context.Background(), f.numbers, next); ok && has {
		x.successor = next + 1
		f.streams.expect(next, u.off, u.off+u.n, now)
	}
	return true
}

// streamed reports whether a unit is read as a stream: it is large, and not on this node, whose drive reads ahead.
func (f *follower) streamed(number int) bool {
	u, ok := f.e.unit(context.Background(), f.numbers, number)
	return ok && u.n > f.e.whole() && !slices.Contains(f.e.cfg.Client.Where(&u.a), f.e.cfg.Client.Self())
}

// fetchPieces starts to fetch pieces of streams, as many as may be in flight.
func (f *follower) fetchPieces(ctx context.Context, pages Pages) {
	f.dropPieces()
	for f.flying < requests && f.window.room(pieceBytes) > 0 {
		p, n, ok := f.streams.fetchNext()
		if !ok {
			return
		}
		u, ok := f.e.unit(ctx, f.numbers, p.number)
		b := &batch{e: f.e, pages: pages, streamed: true, bytes: n, files: []wanted{{Want: Want{File: p.number}, unit: unit{u.a, p.off, n}}}}
		if ok {
			b.at = f.e.cfg.Client.Where(&u.a)
		}
		if !ok || slices.Contains(b.at, f.e.cfg.Client.Self()) {
			f.streams.skip(p) // the drive's read-ahead is enough
			continue
		}
		f.begin(ctx, b)
	}
}

// pieceCame processes the result of a piece.
func (f *follower) pieceCame(b *batch) {
	w, r := &b.files[0], b.results[0]
	came := r.bytes
	if r.res == Failed || r.res == Later {
		came = 0
	}
	if w := f.windowOf(b); w != nil {
		w.end(b.bytes, came, f.e.cfg.Now())
	}
	if !f.streams.fetched(pieceID{w.File, w.off}, r.bytes, r.res) {
		f.e.discard([]place{w.at()})
	}
}

// dropPieces drops pieces that are no longer wanted.
func (f *follower) dropPieces() {
	gone := f.streams.takeGone()
	places := make([]place, len(gone))
	for i, p := range gone {
		places[i] = place{f.numbers.Ino(p.number), p.off}
	}
	if len(places) > 0 {
		f.e.discard(places)
	}
}

// state returns the tracker's state, including the streams.
func (f *follower) state() accessplan.State {
	s := f.t.State()
	s.Memory, s.Prefetched = s.Memory+f.streams.held, s.Prefetched+f.streams.bytes
	if s.Phase == accessplan.Waiting && f.streams.bytes > 0 {
		s.Phase, s.Epoch = accessplan.Following, f.line.epoch
	}
	return s
}

// large reads a large file, or a piece of one.
func (b *batch) large(ctx context.Context, w *wanted, buf []byte) result {
	w.flight = b.e.depart(w.at(), w.n)
	began, mark := b.e.cfg.Now(), b.pages.Mark()
	var err error
	if len(b.at) == 0 || b.own() {
		var n int
		n, err = b.e.cfg.Client.Read(ctx, w.a, buf, w.off, stripe.ReadOpts{NoWait: b.own()})
		buf = buf[:n]
	}
	for off := int64(0); b.remote() && off < w.n && err == nil; off += pieceBytes {
		part := buf[off:min(off+pieceBytes, w.n)]
		rs := []datapath.RangeRead{{Ino: w.a.Ino, Off: w.off + off, Len: int64(len(part))}}
		if err = b.ask(ctx, rs, part); err == nil {
			err = rs[0].Err
		}
	}
	return b.store(w, buf, err, mark, b.e.cfg.Now().Sub(began))
}
