package source

import (
	"context"
	"io"
	"time"
)

// A source counts as cached if quickReads reads in a row were each faster than a disk or a network.
const (
	quickReads = 8
	quickCall  = 20 * time.Microsecond // for each read
	quickRate  = 2 * time.Millisecond  // for each MiB
)

// Quick reports whether a read of n bytes that took d was probably served from memory.
func Quick(n int, d time.Duration) bool { return (d-quickCall)*(1<<20) <= quickRate*time.Duration(n) }

// observe records the latency of one read of n bytes.
func (p *Pool) observe(n int, d time.Duration) {
	if !Quick(n, d) {
		p.quick.Store(0)
		return
	}
	p.quick.Add(1)
}

// AtOnce reports whether reads are served from memory, so that read-ahead gains nothing.
func (p *Pool) AtOnce() bool { return p.quick.Load() >= quickReads }

// ReadRegionNear is ReadRegion for a caller that uses each piece at once. While reads are served from memory there
// is no read-ahead: Next itself reads, into the buffer that was released last, so that the bytes are in this
// processor's cache.
func ReadRegionNear(ctx context.Context, f io.ReaderAt, name string, off, end int64, pool *Pool, depth int) *Region {
	return readRegion(ctx, f, name, off, end, pool, depth, true)
}

// here reads a piece that was left to Next.
func (r *Region) here(a *ahead) {
	if a.piece == nil {
		a.piece, a.err = r.pool.Get(r.ctx)
	}
	if a.err == nil {
		a.piece.Off, a.piece.B = a.off, a.piece.buf[:a.n]
		r.read(a)
	}
}

// read fills a piece and records the latency.
func (r *Region) read(a *ahead) {
	began := time.Now()
	a.err = ReadFull(r.f, r.name, a.piece.B, a.piece.Off)
	if r.near {
		r.pool.observe(len(a.piece.B), time.Since(began))
	}
}
