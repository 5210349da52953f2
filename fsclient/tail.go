package fsclient

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

const (
	// tailSize is what is gathered of a file and sent at once: a request of the
	// kernel, and a part of a chunk of the usual size.
	tailSize = 512 << 10
	// tailsUnderWay is how many of a file are on their way while another is filled:
	// to several nodes, where it is striped.
	tailsUnderWay = 4
)

// tail is what was written to a File in sequence, was acknowledged, and has not
// arrived. Nothing in it overlaps: a write that is not in sequence waits until
// all before it has arrived.
type tail struct {
	turn chan struct{} // has room for the one who gathers

	mu     sync.Mutex
	buf    []byte    // under mu: what is gathered; nil is nothing
	off    int64     // under mu: where buf goes, or atEnd
	by     []*Writer // under mu: who wrote it
	next   int64     // under mu: where a write is in sequence with the last one; atEnd for an append
	flying []*parcel // under mu: what is on its way, the oldest first
	losses uint64    // under mu: how often something was lost that was acknowledged
	lost   error     // under mu: how the last time
}

const (
	atEnd   = -1 // in place of an offset: of an append
	nowhere = -2 // in place of the next one: nothing was written yet
)

func newTail() tail { return tail{turn: make(chan struct{}, 1), next: nowhere} }

// gather takes the first n bytes of p, which w writes at off, to be sent later:
// none of a write that is not in sequence with the last one. Where it takes
// fewer than all, nothing is on its way when it returns.
func (f *File) gather(ctx context.Context, w *Writer, p []byte, off int64) (n int, err error) {
	t := &f.tail
	if err := take(ctx, t.turn); err != nil {
		return 0, fmt.Errorf("write to %v: %w", f.ino, err)
	}
	defer func() { <-t.turn }()
	for t.sequence(off+int64(n), len(p)-n) && n < len(p) {
		m, err := f.gatherSome(ctx, w, p[n:], off+int64(n))
		if n += m; err != nil {
			return n, err
		}
		if m == 0 {
			break
		}
	}
	if n == len(p) {
		return n, nil
	}
	return n, f.arrive(ctx)
}

// gatherWhole is gather for an append, which has one place and is taken as a
// whole or not at all.
func (f *File) gatherWhole(ctx context.Context, w *Writer, p []byte) (ok bool, err error) {
	t := &f.tail
	if err := take(ctx, t.turn); err != nil {
		return false, fmt.Errorf("append to %v: %w", f.ino, err)
	}
	defer func() { <-t.turn }()
	if t.sequence(atEnd, len(p)) && f.isAlone() {
		t.makeRoom(f, len(p))
		n, err := f.gatherSome(ctx, w, p, atEnd)
		if n > 0 || err != nil {
			return n > 0, err
		}
	}
	t.follow(atEnd)
	return false, f.arrive(ctx)
}

// sequence reports whether a write of n bytes at off goes on where the last one
// has ended.
func (t *tail) sequence(off int64, n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return n > 0 && t.next == off
}

// follow says where the next write is in sequence.
func (t *tail) follow(off int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = off
}

// makeRoom sends what is gathered if n bytes do not fit behind it.
func (t *tail) makeRoom(f *File, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.buf != nil && len(t.buf)+n > tailSize {
		f.seal()
	}
}

// gatherSome takes what fits in one buffer; 0 where there is none to be had. The
// turn is held.
func (f *File) gatherSome(ctx context.Context, w *Writer, p []byte, off int64) (int, error) {
	t := &f.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.goesOn(off) {
		t.mu.Unlock()
		err := f.arrive(ctx)
		t.mu.Lock()
		if err != nil {
			return 0, err
		}
	}
	if t.buf == nil {
		t.mu.Unlock()
		b, err := f.buffer(ctx, off)
		t.mu.Lock()
		if b == nil || err != nil {
			return 0, err
		}
		if !f.c.tails.begun(f) {
			f.c.tails.put(b)
			return 0, nil
		}
		t.buf, t.off = b, off
	}
	n := min(len(p), t.limit()-len(t.buf))
	t.buf = append(t.buf, p[:n]...)
	t.next = behind(off, n)
	if !slices.Contains(t.by, w) {
		t.by = append(t.by, w)
	}
	if len(t.buf) == t.limit() {
		f.seal()
	}
	f.c.stats.gathered.Add(int64(n))
	return n, nil
}

// goesOn reports whether what is written at off is right behind all that has not
// arrived, so that none of it is written over; t.mu is held.
func (t *tail) goesOn(off int64) bool {
	switch n := len(t.flying); {
	case t.buf != nil:
		return off == behind(t.off, len(t.buf))
	case n > 0:
		return off == behind(t.flying[n-1].off, len(t.flying[n-1].buf))
	}
	return true
}

// behind is the offset after n bytes at off.
func behind(off int64, n int) int64 {
	if off == atEnd {
		return atEnd
	}
	return off + int64(n)
}

// underWay is how many bytes have not arrived.
func (t *tail) underWay() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.buf)
	for _, p := range t.flying {
		n += len(p.buf)
	}
	return int64(n)
}

// limit is how much buf takes: it ends where a chunk may; t.mu is held.
func (t *tail) limit() int {
	if t.off == atEnd {
		return tailSize
	}
	return int(tailSize - t.off%tailSize)
}

// buffer waits until f may gather more, and returns an empty buffer; nil if what
// goes to off should be written through.
func (f *File) buffer(ctx context.Context, off int64) ([]byte, error) {
	if err := f.tail.fewer(ctx, tailsUnderWay); err != nil {
		return nil, fmt.Errorf("write to %v: %w", f.ino, err)
	}
	if !f.roomy(ctx, off) {
		return nil, nil
	}
	return f.c.tails.get(), nil
}
