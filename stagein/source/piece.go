package source

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// Pool bounds the memory of everything that reads: a buffer is taken before
// bytes are read into it, and whoever wants one waits until there is one.
type Pool struct {
	size int
	room chan struct{} // a token for each buffer that may be out
	// Help has a token for each worker that unpacks beside the first one of each archive.
	Help chan struct{}

	// quick counts the reads in a row that came at once, from memory as it seems.
	quick atomic.Int32

	mu   sync.Mutex
	free [][]byte // guarded by mu
}

// maxHelpers bounds how many workers help to unpack, and so their memory.
const maxHelpers = 8

// NewPool makes a pool of n buffers of size bytes. They are made when needed.
func NewPool(n, size int) *Pool {
	return &Pool{size: size, room: make(chan struct{}, n), Help: make(chan struct{}, min(runtime.GOMAXPROCS(0), maxHelpers))} // one token each
}

// Size is the size of a buffer, in bytes.
func (p *Pool) Size() int { return p.size }

// Get takes a buffer out; it waits while all are out.
func (p *Pool) Get(ctx context.Context) (*Piece, error) {
	select {
	case p.room <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return p.piece(), nil
}

// tryGet is Get for who does not wait; nil if all are out.
func (p *Pool) tryGet() *Piece {
	select {
	case p.room <- struct{}{}:
		return p.piece()
	default:
		return nil
	}
}

// piece makes one with the buffer that was used last, for which there is room.
func (p *Pool) piece() *Piece {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &Piece{pool: p}
	if n := len(p.free); n > 0 {
		q.buf, p.free = p.free[n-1], p.free[:n-1]
	} else {
		q.buf = make([]byte, p.size)
	}
	q.refs.Store(1)
	return q
}

// Room is how many buffers there may be.
func (p *Pool) Room() int { return cap(p.room) }

// Out is how many buffers are out.
func (p *Pool) Out() int { return len(p.room) }

// Piece is a stretch of a source in a pool's buffer. It goes back to the pool
// when every holder has released it.
type Piece struct {
	Off  int64  // in the source
	B    []byte // the bytes
	buf  []byte
	pool *Pool  // nil for bytes that are not a pool's
	of   *Piece // that this is a view of
	refs atomic.Int32
}

// View is the part of p before offset end, as a piece of its own; it holds p.
func (p *Piece) View(end int64) *Piece {
	v := Bytes(p.B[:min(max(end-p.Off, 0), int64(len(p.B)))], p.Off)
	v.of = p.Hold()
	return v
}

// Bytes makes a piece of bytes that no pool has.
func Bytes(b []byte, off int64) *Piece {
	p := &Piece{Off: off, B: b}
	p.refs.Store(1)
	return p
}

// End is the offset in the source after the piece.
func (p *Piece) End() int64 { return p.Off + int64(len(p.B)) }

// Hold says that one more will release the piece.
func (p *Piece) Hold() *Piece {
	p.refs.Add(1)
	return p
}

// Release gives up a hold.
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

// Rest is the part of the buffer after B; Extend makes the first n bytes of it
// a part of B. Who holds other parts of B is not disturbed.
func (p *Piece) Rest() []byte { return p.buf[len(p.B):] }

// Extend makes B longer by n bytes, which were written to Rest.
func (p *Piece) Extend(n int) { p.B = p.buf[:len(p.B)+n] }
