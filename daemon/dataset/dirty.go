package dataset

import (
	"context"
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// The bounds of what is staged and not on the disk yet, of all datasets together.
// Without them the kernel lets a part of the machine's memory fill up before it
// writes, and then holds back everyone who writes, the job's own processes too.
const (
	dirtyLazy = 32 << 20  // bytes of which the kernel is not told to write them
	dirtyMost = 256 << 20 // bytes of which nobody has seen that they are written
	dirtyStep = 4 << 20   // bytes of which the kernel is told at a time
)

// writeBacker is what dirty needs of the store.
type writeBacker interface {
	StartWriteBack(ctx context.Context, ino metadata.Ino, off, n int64) error
	AwaitWriteBack(ctx context.Context, ino metadata.Ino, off, n int64) error
}

// dirty is what was staged lately, the oldest first.
type dirty struct {
	lazy, most, step int64

	mu      sync.Mutex
	fresh   stretches // guarded by mu; written
	started stretches // guarded by mu; on their way to the disk
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

// over takes the oldest off until no more than most bytes are left.
func (q *stretches) over(most int64) (off []stretch) {
	k := 0
	for q.bytes > most {
		q.bytes -= q.all[k].n
		k++
	}
	off, q.all = q.all[:k:k], q.all[k:]
	return off
}

// wrote takes note of a stretch, and sends those that have been there for longest
// to the disk. An error may be of another file: what was staged is then not there.
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

// startAll has stretches written, with the lowest priority: to have that, and to give
// it back, costs as much as to start one of them.
func startAll(ctx context.Context, to writeBacker, all []stretch) error {
	if len(all) == 0 {
		return nil
	}
	return source.Low(func() error {
		for _, s := range all {
			if err := to.StartWriteBack(ctx, s.ino, s.off, s.n); err != nil {
				return err
			}
		}
		return nil
	})
}
