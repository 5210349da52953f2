package stagein

import (
	"sync/atomic"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// patience is how many more slow reads than quick ones show that a source is not at
// hand, though it seemed so. One slow read may be for want of a processor.
const patience = 8

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
func (f *Fill) atHand() bool { return f.far.left.Load() > 0 && f.bufs.in.AtOnce() }

// manner is how the carrier's source is read.
func (c *carrier) manner(file source.File) source.File {
	low := source.Background(file)
	if c.own {
		return timed{low, &c.f.far}
	}
	return low
}

// timed is a file whose reads show whether it is far.
type timed struct {
	source.File
	far *far
}

// ReadAt implements io.ReaderAt.
func (t timed) ReadAt(p []byte, off int64) (int, error) {
	began := time.Now()
	n, err := t.File.ReadAt(p, off)
	t.far.took(source.Quick(len(p), time.Since(began)))
	return n, err
}
