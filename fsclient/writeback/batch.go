package writeback

import (
	"context"
	"fmt"
	"slices"

	"github.com/bivouacfs/bivouac/fsclient/wait"
)

// batch is a range of buffered bytes that is being sent.
type batch struct {
	data  []byte
	off   int64 // or AtEnd
	by    []*Reporter
	after *batch        // of appends: the previous batch in flight, or nil
	done  chan struct{} // closed when the batch has arrived or has failed
}

// send sends the buffered bytes; b.mu is held, and data is not nil.
func (b *Buffer) send() {
	s := &batch{data: b.data, off: b.off, by: b.by, done: make(chan struct{})}
	if n := len(b.sending); n > 0 && s.off == AtEnd {
		s.after = b.sending[n-1]
	}
	b.data, b.by = nil, nil
	b.sending = append(b.sending, s)
	b.pool.wg.Go(func() { b.deliver(s) })
}

// deliver writes a batch, and records an error for its writers. It continues when they stop waiting.
func (b *Buffer) deliver(s *batch) {
	if s.after != nil {
		<-s.after.done
		s.after = nil
	}
	var n int
	var err error
	if s.off == AtEnd {
		n, err = b.file.AppendThrough(b.pool.ctx, s.data)
	} else {
		n, err = b.file.WriteThrough(b.pool.ctx, s.data, s.off)
	}
	b.pool.batches.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.lose(fmt.Errorf("%d of %d buffered bytes were written: %w", n, len(s.data), err), s.by)
	}
	b.sending = slices.DeleteFunc(b.sending, func(o *batch) bool { return o == s })
	b.pool.put(s.data)
	close(s.done)
}

// Drain waits until all bytes buffered now have arrived or have failed. It returns the error of the wait: the Reporters
// have the errors of the writes.
func (b *Buffer) Drain(ctx context.Context) error {
	b.mu.Lock()
	if b.data != nil {
		b.send()
	}
	sending := slices.Clone(b.sending)
	b.mu.Unlock()
	for _, s := range sending {
		if err := wait.For(ctx, s.done); err != nil {
			return fmt.Errorf("inode %v: buffered writes: %w", b.file.Ino(), err)
		}
	}
	return nil
}

// DrainBegun is Drain that also waits for the write that is being buffered now.
func (b *Buffer) DrainBegun(ctx context.Context) error {
	if err := b.writer.Lock(ctx); err != nil {
		return fmt.Errorf("inode %v: buffered writes: %w", b.file.Ino(), err)
	}
	b.writer.Unlock()
	return b.Drain(ctx)
}

// awaitSending waits until fewer than n batches are in flight.
func (b *Buffer) awaitSending(ctx context.Context, n int) error {
	for {
		b.mu.Lock()
		if len(b.sending) < n {
			b.mu.Unlock()
			return nil
		}
		first := b.sending[0]
		b.mu.Unlock()
		if err := wait.For(ctx, first.done); err != nil {
			return err
		}
	}
}
