package source

import (
	"context"
	"io"
	"time"
)

// The reads of a source that seems to be in memory: so many in a row, each faster
// than a disk or a network is.
const (
	quickReads = 8
	quickCall  = 20 * time.Microsecond // for each read
	quickRate  = 2 * time.Millisecond  // for a MiB
)

// Quick reports whether a read of n bytes that took d is from memory, as it seems.
func Quick(n int, d time.Duration) bool { return (d-quickCall)*(1<<20) <= quickRate*time.Duration(n) }

// took takes note of how long a read of n bytes has taken.
func (p *Pool) took(n int, d time.Duration) {
	if !Quick(n, d) {
		p.quick.Store(0)
		return
	}
	p.quick.Add(1)
}

// AtOnce reports whether what is read comes at once, so that nothing is won by reading
// it ahead.
func (p *Pool) AtOnce() bool { return p.quick.Load() >= quickReads }

// ReadRegionNear is ReadRegion for who uses each piece when he has it. While the
// reads into the pool's buffers come at once, nothing is read ahead, but by Next
// itself, into the buffer that was used last: then the bytes are in the cache of the
// processor that goes on with them.
func ReadRegionNear(ctx context.Context, f io.ReaderAt, name string, off, end int64, pool *Pool, depth int) *Region {
	return readRegion(ctx, f, name, off, end, pool, depth, true)
}

// here fills a piece that was left to Next.
func (r *Region) here(a *ahead) {
	if a.piece == nil {
		a.piece, a.err = r.pool.Get(r.ctx)
	}
	if a.err == nil {
		a.piece.Off, a.piece.B = a.off, a.piece.buf[:a.n]
		r.read(a)
	}
}

// read fills a piece, and takes note of how long that takes.
func (r *Region) read(a *ahead) {
	began := time.Now()
	a.err = ReadFull(r.f, r.name, a.piece.B, a.piece.Off)
	if r.near {
		r.pool.took(len(a.piece.B), time.Since(began))
	}
}
