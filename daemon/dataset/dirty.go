package dataset

import (
	"context"
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// Limits on staged bytes that are not on the disk yet, of all datasets together. Without
// them the kernel lets a part of the machine's memory fill up before it writes, and then
// throttles every writer, the job's own processes too.
const (
	dirtyLazy = 32 << 20  // bytes whose write-back is not started
	dirtyMost = 256 << 20 // bytes that may not be on the disk
	dirtyStep = 4 << 20   // bytes whose write-back is started at a time
)

// writeBacker is the part of the store that dirty needs.
type writeBacker interface {
	StartWriteBack(ctx context.Context, ino metadata.Ino, off, n int64) error
	AwaitWriteBack(ctx context.Context, ino metadata.Ino, off, n int64) error
}

// dirty is what was staged recently, oldest first.
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

// stretches is a queue.
type stretches struct {
	all   []stretch
	bytes int64
}

func (q *stretches) push(all ...stretch) {
	for _, s := range all {
		q.all, q.bytes = append(q.all, s), q.bytes+s.n
	}
}

// over removes and returns the oldest until at most most bytes are left.
func (q *stretches) over(most int64) (off []stretch) {
	k := 0
	for q.bytes > most {
		q.bytes -= q.all[k].n
		k++
	}
	off, q.all = q.all[:k:k], q.all[k:]
	return off
}

// wrote records a stretch, and writes the oldest ones back. An error may be of another
// file, whose staged bytes are lost then.
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

// startAll starts the write-back of stretches.
func startAll(ctx context.Context, to writeBacker, all []stretch) error {
	for _, s := range all {
		if err := to.StartWriteBack(ctx, s.ino, s.off, s.n); err != nil {
			return err
		}
	}
	return nil
}
