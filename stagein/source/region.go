package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
)

// Region reads a range of a file once, in large sequential reads with read-ahead.
type Region struct {
	f      io.ReaderAt
	name   string
	pool   *Pool
	ctx    context.Context // cancelled by Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	queue  chan *ahead           // its capacity is the read-ahead; closed at the end of the region
	first  atomic.Pointer[ahead] // taken from queue by Ready; may be nil
}

// ahead is one read.
type ahead struct {
	piece *Piece
	err   error
	done  chan struct{}
}

// ReadRegion starts reading [off, end) of f. At most depth reads are in progress or complete and not yet taken. Close
// must be called.
func ReadRegion(ctx context.Context, f io.ReaderAt, name string, off, end int64, pool *Pool, depth int) *Region {
	r := &Region{f: f, name: name, pool: pool, queue: make(chan *ahead, max(depth-1, 0))}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.wg.Add(1)
	go r.run(r.ctx, off, end)
	return r
}

func (r *Region) run(ctx context.Context, off, end int64) {
	defer r.wg.Done()
	defer close(r.queue)
	for off < end {
		a := &ahead{done: make(chan struct{})}
		p, err := r.pool.Get(ctx)
		if err != nil {
			a.err = err
			close(a.done)
			r.queue <- a // Close or Next takes it
			return
		}
		p.Off, p.B = off, p.buf[:min(int64(len(p.buf)), end-off)]
		off += int64(len(p.B))
		a.piece = p
		r.wg.Add(1)
		go r.fill(a)
		r.queue <- a // Close or Next takes it
	}
}

func (r *Region) fill(a *ahead) {
	defer r.wg.Done()
	defer close(a.done)
	a.err = ReadFull(r.f, r.name, a.piece.B, a.piece.Off)
}

func (r *Region) drop(a *ahead) {
	<-a.done
	if a.piece != nil {
		a.piece.Release()
	}
}

// Next returns the next piece, which the caller must release; io.EOF at the end of the region.
func (r *Region) Next() (*Piece, error) {
	a := r.first.Swap(nil)
	if a == nil {
		a = <-r.queue
	}
	if a == nil {
		return nil, io.EOF
	}
	<-a.done
	if a.err != nil {
		if a.piece != nil {
			a.piece.Release()
		}
		return nil, a.err
	}
	return a.piece, nil
}

// Ready reports whether Next will not block.
func (r *Region) Ready() bool {
	a := r.first.Load()
	if a == nil {
		var more bool
		select {
		case a, more = <-r.queue:
			if !more {
				return true
			}
			r.first.Store(a)
		default:
			return false
		}
	}
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// Close stops reading and waits for reads in progress. It may be called during a Next, but not during a Ready.
func (r *Region) Close() {
	r.cancel()
	if a := r.first.Swap(nil); a != nil {
		r.drop(a)
	}
	for a := range r.queue {
		r.drop(a)
	}
	r.wg.Wait()
}

// Fill reads up to n bytes at off of f into the piece, at most its buffer.
func (p *Piece) Fill(f io.ReaderAt, name string, off, n int64) error {
	p.Off, p.B = off, p.buf[:min(int64(len(p.buf)), n)]
	return ReadFull(f, name, p.B, off)
}

// ReadFull fills p from off of f. It fails with ESTALE if the file is too short.
func ReadFull(f io.ReaderAt, name string, p []byte, off int64) error {
	n, err := f.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: ends at offset %d, the file became shorter: %w", name, off+int64(n), syscall.ESTALE)
	}
	return fmt.Errorf("%s at offset %d: %w", name, off+int64(n), err)
}
