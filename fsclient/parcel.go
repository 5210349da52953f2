package fsclient

import (
	"context"
	"fmt"
	"slices"
)

// parcel is what was gathered of a file and is sent at once.
type parcel struct {
	buf   []byte
	off   int64 // or atEnd
	by    []*Writer
	after *parcel       // of an append: the one before; nil is none
	done  chan struct{} // closed when it has arrived, or never will
}

// seal has what is gathered sent; f.tail.mu is held, and something is gathered.
func (f *File) seal() {
	t := &f.tail
	p := &parcel{buf: t.buf, off: t.off, by: t.by, done: make(chan struct{})}
	if n := len(t.flying); n > 0 && p.off == atEnd {
		p.after = t.flying[n-1]
	}
	t.buf, t.by = nil, nil
	t.flying = append(t.flying, p)
	f.c.tails.wg.Go(func() { f.send(p) })
}

// send writes a parcel, and tells those who wrote it of an error. It goes on
// when they do not wait any more.
func (f *File) send(p *parcel) {
	if p.after != nil {
		<-p.after.done
		p.after = nil
	}
	var n int
	var err error
	if p.off == atEnd {
		n, err = f.appendNow(f.c.ctx, p.buf)
	} else {
		n, _, err = f.writeNow(f.c.ctx, p.buf, p.off)
	}
	f.c.stats.parcels.Add(1)
	t := &f.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("of %d bytes that were written before, %d have arrived: %w", len(p.buf), n, err)
		t.lose(err, p.by)
	}
	t.flying = slices.DeleteFunc(t.flying, func(q *parcel) bool { return q == p })
	f.c.tails.put(p.buf)
	close(p.done)
}

// arrive waits until all that was gathered until now has arrived, or cannot. The
// error is that of the wait; those who wrote it learn of theirs.
func (f *File) arrive(ctx context.Context) error {
	t := &f.tail
	t.mu.Lock()
	if t.buf != nil {
		f.seal()
	}
	under := slices.Clone(t.flying)
	t.mu.Unlock()
	for _, p := range under {
		if err := await(ctx, p.done); err != nil {
			return fmt.Errorf("inode %v: what was written: %w", f.ino, err)
		}
	}
	return nil
}

// fewer waits until fewer than n parcels are on their way.
func (t *tail) fewer(ctx context.Context, n int) error {
	for {
		t.mu.Lock()
		if len(t.flying) < n {
			t.mu.Unlock()
			return nil
		}
		first := t.flying[0]
		t.mu.Unlock()
		if err := await(ctx, first.done); err != nil {
			return err
		}
	}
}

// await waits for done.
func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctxErrno(ctx)
	}
}
