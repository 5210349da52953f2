package stagein

import (
	"sync/atomic"
	"time"

	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
)

const (
	// patience is how many more slow reads than quick ones show that a source is not at
	// hand, though it seemed so. One slow read may be for want of a processor.
	patience = 8
	// probes is how many pieces are read to see whether it is, before it is known how the
	// others are best read, and probePatience its patience with those.
	probes        = 8
	probePatience = 3
	// probeTime is how long all that is waited for: an archive may be on tape.
	probeTime = time.Second
)

// far counts how many more are missing.
type far struct{ left atomic.Int32 }

func (r *far) took(quick bool) {
	for {
		was := r.left.Load()
		now := was - 1
		if quick {
			now = min(was+1, patience)
		}
		if was == 0 || r.left.CompareAndSwap(was, now) {
			return
		}
	}
}

// atHand reports whether the source is in memory, as it seems, so that a small read
// costs no more than its share of a large one. Then it costs less to read a piece than
// to have it from another node, and no byte is read twice for that. A source that
// turned out not to be at hand is not tried again.
func (f *Fill) atHand() bool {
	return f.first.left.Load() > 0 || f.far.left.Load() > 0 && f.bufs.in.AtOnce()
}

// took takes note of a read in small pieces.
func (f *Fill) took(quick bool) {
	if f.first.left.Load() > 0 {
		f.first.took(quick)
		return
	}
	f.far.took(quick)
}

// probe reads a few pieces of this node's own, one after the other, until it shows
// that the source is not at hand.
func (f *Fill) probe(m cluster.Map) error {
	r := &run{own: true}
	err := f.each(m, func(id runID, p part, alone bool) bool {
		if !alone && p.node == f.cfg.Self && f.lacks(p.piece) && (len(r.parts) == 0 || id.source == r.source) {
			r.runID, r.parts = id, append(r.parts, p)
		}
		return len(r.parts) < probes
	})
	if err != nil || len(r.parts) == 0 {
		return err
	}
	r.sort()
	if !f.enter() {
		return nil
	}
	over := make(chan struct{})
	go func() {
		defer f.wg.Done()
		defer close(over)
		f.readRun(r)
	}()
	late := time.NewTimer(probeTime)
	defer late.Stop()
	select {
	case <-over:
	case <-late.C:
		f.first.left.Store(0)
	}
	return nil
}

// manner is how the carrier's source is read.
func (c *carrier) manner(file source.File) source.File {
	low := source.Background(file)
	if c.own {
		return timed{low, c.f.took}
	}
	return low
}

// timed is a file whose reads show whether it is far.
type timed struct {
	source.File
	took func(quick bool)
}

// ReadAt implements io.ReaderAt.
func (t timed) ReadAt(p []byte, off int64) (int, error) {
	began := time.Now()
	n, err := t.File.ReadAt(p, off)
	t.took(source.Quick(len(p), time.Since(began)))
	return n, err
}
