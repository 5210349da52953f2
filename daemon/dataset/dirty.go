package dataset

import (
	"context"
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// Limits on staged bytes that are not on the disk yet, over all datasets. Without them the kernel fills a part of the
// machine's memory before it writes, and then throttles every writer, including the job's own processes.
const (
	dirtyLazy = 32 << 20  // bytes whose write-back has not started
	dirtyMost = 256 << 20 // bytes that may not be on the disk
	dirtyStep = 4 << 20   // write-back starts for so many bytes at once
)

// writeBacker is the part of the store that dirty uses.
type writeBacker interface {
	StartWriteBack(ctx context.Context, ino metadata.Ino, off, n int64) error
	AwaitWriteBack(ctx context.Context, ino metadata.Ino, off, n int64) error
}

// dirty holds the recently staged ranges that may not be on the disk yet, oldest first.
type dirty struct {
	lazy, most, step int64

	mu      sync.Mutex
	fresh   stretches // guarded by mu; written
	started stretches // guarded by mu; being written back
}

type stretch struct {
	ino    metadata.Ino
	off, n int64
}

// stretches is a queue of byte ranges.
type stretches struct {
	all   []stretch
	bytes int64
}

func (q *stretches) push(all ...stretch) {
	for _, s := range all {
		q.all, q.bytes = append(q.all, s), q.bytes+s.n
	}
}

// over removes and returns the oldest stretches until at most most bytes are left in the queue.
func (q *stretches) over(most int64) (off []stretch) {
	k := 0
	for q.bytes > most {
		q.bytes -= q.all[k].n
		k++
	}
	off, q.all = q.all[:k:k], q.all[k:]
	return off
}

// wrote records a written range and writes the oldest ranges back. An error may belong to another file, whose staged
// bytes are then lost.
func (d *dirty) wrote(ctx context.Context, to writeBacker, ino metadata.Ino, off, n int64) error {
	if n <= 0 {
		return nil
	}
	d.mu.Lock()
	d.fresh.push(stretch{ino, off, n})
	var start []stretch
	if d.fresh.bytes >= d.lazy+d.step {
		start = d.fresh.over(d.lazy)
	}
	d.started.push(start...)
	await := d.started.over(d.most - d.lazy - d.step)
	d.mu.Unlock()
	if err := startAll(ctx, to, start); err != nil {
		return err
	}
	for _, s := range await {
		if err := to.AwaitWriteBack(ctx, s.ino, s.off, s.n); err != nil {
			return err
		}
	}
	return nil
}

// startAll starts the write-back of all given ranges.
func startAll(ctx context.Context, to writeBacker, all []stretch) error {
	for _, s := range all {
		if err := to.StartWriteBack(ctx, s.ino, s.off, s.n); err != nil {
			return err
		}
	}
	return nil
}
