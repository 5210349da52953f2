package source

import (
	"context"
	"sync"
	"sync/atomic"
)

// Pool bounds the memory of all reads: a buffer is taken before bytes are read into it, and Get waits until one is
// free.
type Pool struct {
	size int
	room chan struct{} // holds a token for each buffer in use

	mu   sync.Mutex
	free [][]byte // guarded by mu
}

// NewPool returns a pool of n buffers of size bytes, allocated on demand.
func NewPool(n, size int) *Pool {
	return &Pool{size: size, room: make(chan struct{}, n)}
}

// Size returns the size of a buffer, in bytes.
func (p *Pool) Size() int { return p.size }

// Get takes the most recently released buffer; it waits while all are in use.
func (p *Pool) Get(ctx context.Context) (*Piece, error) {
	select {
	case p.room <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &Piece{pool: p}
	if n := len(p.free); n > 0 {
		q.buf, p.free = p.free[n-1], p.free[:n-1]
	} else {
		q.buf = make([]byte, p.size)
	}
	q.refs.Store(1)
	return q, nil
}

// Room returns the number of buffers in the pool.
func (p *Pool) Room() int { return cap(p.room) }

// Out returns the number of buffers in use.
func (p *Pool) Out() int { return len(p.room) }

// Piece is a range of a source in a buffer of a pool. The buffer returns to the pool with the last Release.
type Piece struct {
	Off  int64 // offset in the source
	B    []byte
	buf  []byte
	pool *Pool  // nil if the bytes belong to no pool
	of   *Piece // the piece that this is a view of
	refs atomic.Int32
}

// View returns the part of p before offset end as a piece of its own, which holds p.
func (p *Piece) View(end int64) *Piece {
	v := Bytes(p.B[:min(max(end-p.Off, 0), int64(len(p.B)))], p.Off)
	v.of = p.Hold()
	return v
}

// Bytes returns a piece of bytes that belong to no pool.
func Bytes(b []byte, off int64) *Piece {
	p := &Piece{Off: off, B: b}
	p.refs.Store(1)
	return p
}

// End returns the offset in the source behind the piece.
func (p *Piece) End() int64 { return p.Off + int64(len(p.B)) }

// Hold adds a reference.
func (p *Piece) Hold() *Piece {
	p.refs.Add(1)
	return p
}

// Release drops a reference.
func (p *Piece) Release() {
	if p.refs.Add(-1) != 0 {
		return
	}
	if p.of != nil {
		p.of.Release()
	}
	if p.pool == nil {
		return
	}
	p.pool.mu.Lock()
	p.pool.free = append(p.pool.free, p.buf)
	p.pool.mu.Unlock()
	p.B, p.buf = nil, nil
	<-p.pool.room
}

// Rest returns the unused part of the buffer behind B. Writing to it does not disturb holders of B.
func (p *Piece) Rest() []byte { return p.buf[len(p.B):] }

// Extend appends to B the n bytes that were written to Rest.
func (p *Piece) Extend(n int) { p.B = p.buf[:len(p.B)+n] }
