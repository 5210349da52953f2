package prefetch

import (
	"context"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

const pageBytes = 4096

// unit is the byte range of a number, in whole pages.
type unit struct {
	a      metadata.Attr
	off, n int64
}

// unit returns the unit of a number; ok is false if the dataset has no bytes there.
func (e *Engine) unit(ctx context.Context, numbers *accessplan.Numbering, number int) (u unit, ok bool) {
	ino := numbers.Ino(number)
	if ino == 0 {
		return u, false
	}
	a, err := e.cfg.Client.Getattr(ctx, ino)
	if err != nil || a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return u, false
	}
	r, end := numbers.Range(number), a.Size
	if r.Len > 0 && r.Len < end-r.Off {
		end = min((r.Off+r.Len+pageBytes-1)&^(pageBytes-1), a.Size)
	}
	u = unit{a, r.Off &^ (pageBytes - 1), end - r.Off&^(pageBytes-1)}
	return u, u.n > 0
}

// place is the start of bytes that are fetched together: a unit, or a piece of one.
type place struct {
	ino metadata.Ino
	off int64
}

// kept is a range of bytes in memory.
type kept struct {
	b     []byte
	off   int64
	end   bool  // of the file
	left  int64 // bytes not yet returned to a read
	pages Pages
	mark  uint64
}

// part returns up to n bytes at off, or none if they are not here, or if pages were dropped since.
func (k *kept) part(off, n int64) []byte {
	off -= k.off
	if off < 0 || off >= int64(len(k.b)) || k.pages.Mark() != k.mark {
		return nil
	}
	end := min(off+n, int64(len(k.b)))
	return k.b[off:end:end]
}

// places returns where bytes at off may be kept: in a whole unit, or in a piece of one.
func (e *Engine) places(ino metadata.Ino, off int64) (whole, piece place) {
	begin := int64(0)
	if n := e.units.Load(); n != nil && n.Ranged() {
		if k, ok := n.At(ino, off, pageBytes); ok {
			begin = n.Range(k).Off &^ (pageBytes - 1)
		}
	}
	return place{ino, begin}, place{ino, begin + (off-begin)/pieceBytes*pieceBytes}
}

// piece returns the first bytes of a read, and whether they end with the file; none if they are neither in memory nor
// in flight. With note, the tracker sees the read.
func (e *Engine) piece(ctx context.Context, s sight, note bool) (b []byte, end bool) {
	b, end, f := e.take(s)
	if u := e.units.Load(); note && (s.off == 0 || s.off >= pieceBytes || u != nil && u.Ranged()) {
		select {
		case e.seen <- s:
		default: // the tracker is busy; it misses a sample
		}
	}
	if f != nil && f.wait(ctx, e.cfg.Now()) {
		b, end = f.part(s.off, s.n), f.end
		e.take(s)
	}
	return b, end
}

// take returns kept bytes, which are dropped when all were read, or the flight that fetches them.
func (e *Engine) take(s sight) (b []byte, end bool, f *flight) {
	whole, piece := e.places(s.ino, s.off)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, at := range [2]place{piece, whole} {
		if k := e.kept[at]; k != nil {
			b = k.part(s.off, s.n)
			if k.left -= int64(len(b)); k.left <= 0 || k.pages.Mark() != k.mark {
				delete(e.kept, at)
			}
			if b != nil {
				return b, k.end, nil
			}
		}
		if f = e.flights[at]; f != nil && s.off < at.off+f.n {
			f.met = true
			return nil, false, f
		}
	}
	return nil, false, nil
}

// drop gives up kept bytes. Some are being read in parts, so the most recent ones stay for a while.
func (e *Engine) drop(places []place) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, at := range places {
		if e.kept[at] != nil {
			e.begun = append(e.begun, at)
		}
	}
	bytes := int64(0)
	for i := len(e.begun) - 1; i >= 0; i-- {
		if k := e.kept[e.begun[i]]; k != nil {
			bytes += int64(len(k.b))
		}
		if bytes <= e.cfg.Budget/readShare && len(e.begun)-i <= mostRead {
			continue
		}
		for _, at := range e.begun[:i+1] {
			delete(e.kept, at)
		}
		e.begun = e.begun[i+1:]
		return
	}
}

// discard gives up kept bytes at once.
func (e *Engine) discard(places []place) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, at := range places {
		delete(e.kept, at)
	}
}
