package stagein

import (
	"slices"
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// A cut is what lies between two places of a compressed tar. To come to a file of it, what
// is before that has to be unpacked. Who reads the first file of one unpacks no more; when
// somebody comes for another a little later, all of the cut is unpacked, once for all, and stays in
// memory as the files that are read through do. So files that are read in an order of their own cost
// nothing more, and neighbours do not cost each time what is before them.

// cutMost is the most bytes of a cut that is kept.
const cutMost = 32 << 20

// cuts is those that are in memory, and which were looked at last.
type cuts struct {
	window *window

	mu   sync.Mutex
	last []piece // guarded by mu; the oldest first
}

// cutsSeen is of how many cuts it is known that they were looked at.
const cutsSeen = 64

// windows is how the memory for what is read through is shared: places have a part of it, which is there as they came
// and as they are used, and what they take is bounded (windowsMost).
func (cfg *FillConfig) windows() (files, cuts int64) {
	places := int64(0)
	for i := range cfg.Origins.Sources {
		places += 2 * int64(len(cfg.Origins.Sources[i].Places))
	}
	if places == 0 {
		return cfg.Window, 0
	}
	cuts = cfg.Window / 4
	return cfg.Window - cuts - min(places, cfg.Window/2), cuts
}

func newCuts(max int64) *cuts { return &cuts{window: newWindow(max)} }

// again reports whether a cut was looked at not long ago.
func (c *cuts) again(p piece) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.last, p)
	if i >= 0 {
		c.last = slices.Delete(c.last, i, i+1)
	} else if len(c.last) == cutsSeen {
		c.last = slices.Delete(c.last, 0, 1)
	}
	c.last = append(c.last, p)
	return i >= 0
}

// fromCut fills b with a file that src is, of the source n, if it lies in one or two cuts that
// are worth to be kept. The caller holds a slot.
func (f *Fill) fromCut(src *stretch, n uint32, b []byte) bool {
	var all []oneCut
	off, again := src.base, true
	for end := off + int64(len(b)); off < end; {
		x, ok := f.cuts.of(src, n, off)
		if !ok || len(all) == 2 {
			return false
		}
		again = f.cuts.again(x.piece) && again
		all, off = append(all, x), x.end
	}
	if src.sparse || !again {
		return false
	}
	off = src.base
	for _, x := range all {
		k := min(int64(len(b)), x.end-off)
		err := f.cuts.window.look(f.ctx, x.piece, x.end-x.begin,
			func(fetch func()) { fetch() },
			func(p []byte) error { return f.unpackCut(src, &x, p) },
			func(p []byte) { copy(b[:k], p[off-x.begin:]) })
		if err != nil {
			return false // what is damaged may be a neighbour
		}
		b, off = b[k:], off+k
	}
	return true
}

// forgetCuts forgets those in which a file lies that is not what it was.
func (f *Fill) forgetCuts(ino metadata.Ino) {
	from, a, err := f.cfg.Files.Origin(ino)
	if err != nil || int(from.Source) >= len(f.cfg.Origins.Sources) {
		return
	}
	places, _ := f.src.placesOf(from.Source) // there are no cuts of what has none
	for off := from.Off; off < from.Off+a.Size; {
		i, _, end, ok := places.Cut(off)
		if !ok {
			return
		}
		f.cuts.window.forget(piece{metadata.Ino(from.Source), uint32(i)})
		off = end
	}
}

// oneCut is what lies at [begin, end) of what a compressed tar unpacks to.
type oneCut struct {
	piece
	begin, end int64
}

// of is the cut that has the byte at off; false if that is none that can be kept.
func (c *cuts) of(src *stretch, n uint32, off int64) (oneCut, bool) {
	i, begin, end, ok := src.places.Cut(off)
	return oneCut{piece{metadata.Ino(n), uint32(i)}, begin, end}, ok && end-begin <= min(cutMost, c.window.max)
}

func (f *Fill) unpackCut(src *stretch, x *oneCut, b []byte) error {
	return src.fromPlace(f.ctx, f.bufs, x.begin-src.base, x.end-x.begin, func(p []byte, at int64) error {
		copy(b[at+src.base-x.begin:], p)
		return nil
	})
}
