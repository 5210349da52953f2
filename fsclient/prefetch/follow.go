package prefetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// follower follows one plan. Its goroutine owns the tracker.
type follower struct {
	e       *Engine
	plan    *accessplan.Plan
	numbers *accessplan.Numbering
	changed <-chan struct{}
	t       *Tracker
	results chan *batch
	flying  int                         // batches in flight
	window  window                      // of batches from other nodes
	source  window                      // of batches from the source
	queued  []*batch                    // from the source, not started
	heard   map[int]accessplan.Position // by rank: the last position passed to the tracker
	phase   accessplan.Phase
	streams streams
	line    line
}

// result is the result of a want.
type result struct {
	Want
	res   Result
	bytes int64
	took  time.Duration
}

// run follows the plan until it changes or ctx ends.
func (f *follower) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	clock := time.NewTicker(tick)
	defer clock.Stop()
	for over := false; !over; {
		select {
		case s := <-f.e.seen:
			f.observe(s)
		case b := <-f.results:
			f.drain() // reads that met the batch precede it
			f.finish(b)
		case <-clock.C:
			f.positions()
			f.streams.expire(f.e.cfg.Now())
		case <-f.changed:
			plan, changed := f.e.cfg.Plan()
			over, f.changed = plan != f.plan, changed // else another dataset's plan changed
		case <-ctx.Done():
			over = true
		}
		f.drain()
		if f.e.moved.Swap(false) {
			f.t.Lost()
		}
		if !over {
			f.fetch(ctx)
		}
		f.tidy()
	}
	cancel()
	for f.flying > 0 {
		f.finish(<-f.results)
	}
	f.e.mu.Lock()
	clear(f.e.kept)
	f.e.begun = nil
	f.e.mu.Unlock()
}

// drain observes the queued reads.
func (f *follower) drain() {
	for range len(f.e.seen) {
		f.observe(<-f.e.seen)
	}
}

// observe passes the first read of a unit to the tracker, and every read of a large unit to the streams.
func (f *follower) observe(s sight) {
	number, ok := f.numbers.At(s.ino, s.off, pageBytes)
	if !ok {
		return
	}
	if s.opened {
		if !f.numbers.Ranged() {
			f.t.Opened(number, f.e.cfg.Now())
		}
		return
	}
	first := s.off - f.numbers.Range(number).Off&^(pageBytes-1)
	if f.streams.budget > 0 && f.t.phase != accessplan.Stale && f.stream(number, s) && f.numbers.Len() < leastTracked {
		return // too few units for the tracker to find the epoch
	}
	if first == 0 || f.numbers.Ranged() && first <= pageBytes {
		f.t.Observe(number, f.e.cfg.Now())
	}
}

// tidy drops files that are no longer wanted, and publishes the state.
func (f *follower) tidy() {
	if numbers := f.t.Released(); len(numbers) > 0 {
		places := make([]place, len(numbers))
		for i, n := range numbers {
			places[i] = f.place(n)
		}
		f.e.drop(places)
	}
	f.dropPieces()
	s := f.state()
	f.e.setState(s)
	if s.Phase == f.phase {
		return
	}
	log := f.e.cfg.Log.WithField("epoch", s.Epoch)
	if s.Reason != "" {
		log = log.WithField("reason", s.Reason)
	}
	switch s.Phase {
	case accessplan.Stale:
		log.Warn("reads do not follow the access plan: nothing is prefetched until they do")
	case accessplan.Following:
		log.Info("reads follow the access plan")
	}
	f.phase = s.Phase
}

// finish reports the results of a batch to the tracker.
func (f *follower) finish(b *batch) {
	f.flying--
	var unwanted []place
	var came int64
	if b.streamed {
		f.pieceCame(b)
		return
	}
	for _, r := range b.results {
		if r.res != Later && r.res != Failed {
			came += r.bytes
		}
		if !f.t.Fetched(r.Want, r.res, r.bytes, r.took, f.e.cfg.Now()) && (r.res == Kept || r.res == Met) {
			unwanted = append(unwanted, f.place(r.File))
		}
	}
	if w := f.windowOf(b); w != nil {
		w.end(b.bytes, came, f.e.cfg.Now())
	}
	f.e.discard(unwanted)
}

// place returns where the unit of a number begins.
func (f *follower) place(number int) place {
	return place{f.numbers.Ino(number), f.numbers.Range(number).Off &^ (pageBytes - 1)}
}

// wanted is a want with its unit.
type wanted struct {
	Want
	unit
	flight *flight // nil until it is requested
}

func (w *wanted) at() place { return place{w.a.Ino, w.off} }

// fetch starts batches for the next wants, as many as may be in flight.
func (f *follower) fetch(ctx context.Context) {
	pages := f.e.pages.Load()
	if pages == nil {
		return // no reads yet
	}
	f.fetchPieces(ctx, *pages)
	for f.flying < requests {
		ws := f.t.Next(int(min(f.window.room(f.t.cfg.Mean), mostWants)), f.e.cfg.Now())
		if len(ws) == 0 {
			break
		}
		for _, b := range f.divide(ctx, *pages, ws) {
			if b.through {
				f.queued = append(f.queued, b)
			} else {
				f.begin(ctx, b)
			}
		}
	}
	for len(f.queued) > 0 && f.flying < requests && f.source.room(1) > 0 {
		b := f.queued[0]
		f.queued = f.queued[1:]
		b.files = slices.DeleteFunc(b.files, func(w wanted) bool {
			if !f.t.overtaken(w.Want, f.e.cfg.Now()) {
				return false
			}
			b.bytes -= w.n
			return true
		})
		if len(b.files) > 0 {
			f.begin(ctx, b)
		}
	}
}

// begin starts a batch.
func (f *follower) begin(ctx context.Context, b *batch) {
	f.flying++
	if w := f.windowOf(b); w != nil {
		w.begin(b.bytes, f.e.cfg.Now())
	}
	go func() {
		b.results = b.fetch(ctx)
		f.results <- b
	}()
}

// windowOf returns the window of a batch; nil for files of this node.
func (f *follower) windowOf(b *batch) *window {
	switch {
	case b.through:
		return &f.source
	case b.remote():
		return &f.window
	}
	return nil
}

// batch is a group of files held by the same nodes, or of overflow files that lie side by side in their source. Without
// nodes, other files are read one by one. A large file, or a piece of a stream, is a batch of its own.
type batch struct {
	e        *Engine
	pages    Pages
	at       []metadata.NodeID
	through  bool // the files overflow
	streamed bool
	files    []wanted
	bytes    int64

	results []result // set when the batch has ended
}

// own reports whether the files are on this node.
func (b *batch) own() bool { return len(b.at) == 1 && b.at[0] == b.e.cfg.Client.Self() }

// remote reports whether the files come from other nodes' drives.
func (b *batch) remote() bool { return len(b.at) > 0 && !b.own() }

// divide groups wants by the nodes that hold them. It reports files that are not fetched as failed wants.
func (f *follower) divide(ctx context.Context, pages Pages, ws []Want) (all []*batch) {
	open := make(map[string]*batch)
	for _, w := range ws {
		u, ok := f.e.unit(ctx, f.numbers, w.File)
		if !ok || u.n > f.e.whole() {
			f.t.Fetched(w, Failed, 0, 0, f.e.cfg.Now())
			continue
		}
		at := f.e.cfg.Client.Where(&u.a)
		if self := f.e.cfg.Client.Self(); slices.Contains(at, self) {
			at = []metadata.NodeID{self}
			if pages.Direct() {
				if u.n == u.a.Size {
					f.e.cfg.Client.Advise(ctx, &u.a)
				}
				f.t.Fetched(w, Failed, 0, 0, f.e.cfg.Now())
				continue
			}
		}
		key := fmt.Sprint(at)
		large := u.n > batchBytes
		through := u.a.Layout.Kind == metadata.Overflow && !large && u.n == u.a.Size
		if through {
			key = fmt.Sprint("run ", w.Run)
		}
		b := open[key]
		if b == nil || large || !through && (b.bytes+u.n > batchBytes || len(b.files) == batchFiles) {
			b = &batch{e: f.e, pages: pages, at: at, through: through}
			if all = append(all, b); !large {
				open[key] = b
			}
		}
		b.files = append(b.files, wanted{Want: w, unit: u})
		b.bytes += u.n
	}
	return all
}

// overflows reports whether a small file overflows: it stays in the source.
func (f *follower) overflows(file int) bool {
	ino := f.numbers.Ino(file)
	if ino == 0 {
		return false
	}
	a, err := f.e.cfg.Client.Getattr(context.Background(), ino)
	return err == nil && a.Layout.Kind == metadata.Overflow && a.Size <= batchBytes && !f.numbers.Ranged()
}

// neighbours returns the wanted files that are read together with an overflow file.
func (f *follower) neighbours(file int, wanted func(int) bool) (all []int) {
	if !f.overflows(file) {
		return nil
	}
	number := func(ino metadata.Ino) int {
		if n, ok := f.numbers.Of(ino); ok {
			return n
		}
		return -1
	}
	for _, ino := range f.e.cfg.Client.Neighbours(f.numbers.Ino(file), func(ino metadata.Ino) bool { n := number(ino); return n >= 0 && wanted(n) }) {
		all = append(all, number(ino))
	}
	return all
}

var buffers = sync.Pool{New: func() any { b := make([]byte, batchBytes); return &b }}

// fetch reads the files and stores them.
func (b *batch) fetch(ctx context.Context) []result {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch {
	case b.through:
		return b.many(ctx, make([]byte, b.bytes))
	case b.bytes > batchBytes || b.streamed:
		return []result{b.large(ctx, &b.files[0], make([]byte, b.bytes))}
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	switch {
	case len(b.at) == 0:
		return b.each(ctx, *buf, stripe.ReadOpts{})
	case b.own():
		return b.each(ctx, *buf, stripe.ReadOpts{NoWait: true})
	}
	return b.many(ctx, *buf)
}

// many reads all files in one call.
func (b *batch) many(ctx context.Context, buf []byte) []result {
	rs := make([]datapath.RangeRead, len(b.files))
	for i := range b.files {
		w := &b.files[i]
		rs[i] = datapath.RangeRead{Ino: w.a.Ino, Off: w.off, Len: w.n}
		w.flight = b.e.depart(w.at(), w.n)
	}
	began, mark := b.e.cfg.Now(), b.pages.Mark()
	err := b.ask(ctx, rs, buf)
	took := b.e.cfg.Now().Sub(began)
	out := make([]result, len(rs))
	for i := range rs {
		if err != nil {
			rs[i].Err = err
		}
		out[i] = b.store(&b.files[i], rs[i].Data, rs[i].Err, mark, took)
	}
	return out
}

// ask calls the fastest node, and if that fails, the others. This node reads overflow files.
func (b *batch) ask(ctx context.Context, rs []datapath.RangeRead, buf []byte) (err error) {
	if b.through {
		r := b.e.cfg.Client.BeginRead(b.bytes, []metadata.NodeID{sources.Source})
		r.Place = b.e.cfg.Client.Self()
		return b.askOne(ctx, r, rs, buf)
	}
	for at := slices.Clone(b.at); len(at) > 0; {
		r := b.e.cfg.Client.BeginRead(b.bytes, at)
		err = b.askOne(ctx, r, rs, buf)
		if err == nil || ctx.Err() != nil {
			return err
		}
		at = slices.DeleteFunc(at, func(id metadata.NodeID) bool { return id == r.Place })
	}
	return err
}

func (b *batch) askOne(ctx context.Context, r sources.Read, rs []datapath.RangeRead, buf []byte) error {
	limited, cancel := ctx, context.CancelFunc(func() {})
	if r.Patience > 0 {
		limited, cancel = context.WithTimeout(ctx, r.Patience)
	}
	defer cancel()
	err := b.e.cfg.Client.ReadMany(limited, r.Place, rs, buf)
	if ctx.Err() != nil || errors.Is(err, syscall.EAGAIN) {
		r.Drop()
		return err
	}
	r.End(b.bytes, err != nil)
	if err == nil && len(b.at) > 1 && errors.Is(rs[0].Err, syscall.EAGAIN) {
		return rs[0].Err // the replica was removed: another node may have the file
	}
	return err
}

// each reads the files one by one.
func (b *batch) each(ctx context.Context, buf []byte, o stripe.ReadOpts) []result {
	out := make([]result, len(b.files))
	for i := range b.files {
		w := &b.files[i]
		w.flight = b.e.depart(w.at(), w.n)
		began, mark := b.e.cfg.Now(), b.pages.Mark()
		n, err := b.e.cfg.Client.Read(ctx, w.a, buf[:w.n], w.off, o)
		out[i] = b.store(w, buf[:n], err, mark, b.e.cfg.Now().Sub(began))
	}
	return out
}

// store puts bytes into the page cache. Probes and pieces of streams it keeps in memory, so their reads are seen.
func (b *batch) store(w *wanted, data []byte, err error, mark uint64, took time.Duration) result {
	r := result{Want: w.Want, bytes: w.n, took: took}
	if w.Beacon && err == nil && b.e.unmet(w.at(), w.flight) {
		n := w.n
		if n == w.a.Size {
			n = 0
		}
		b.pages.Drop(w.a.Ino, w.off, n)
	}
	keep := func() bool {
		if w.n <= batchBytes {
			data = bytes.Clone(data) // the buffer is reused
		}
		return b.e.land(w.at(), w.flight, kept{b: data, off: w.off, end: w.off+w.n == w.a.Size, left: w.n, pages: b.pages, mark: mark})
	}
	switch {
	case err != nil || int64(len(data)) != w.n:
		b.e.land(w.at(), w.flight, kept{})
		if r.res = Failed; errors.Is(err, syscall.EAGAIN) {
			r.res = Later
		}
	case !w.Probe && !b.streamed && b.e.unmet(w.at(), w.flight) && b.pages.Store(w.a.Ino, w.off, data, mark):
		r.res = Stored
	case keep():
		r.res = Met
	default:
		r.res = Kept
	}
	return r
}
