package fsclient

import (
	"context"
	"errors"
	"time"

	"github.com/bivouacfs/bivouac/fsclient/wait"
)

const (
	// idleWriters is how long files that are open for writing must be idle until their writers count as done.
	idleWriters = 2 * time.Second
	quiescePoll = 20 * time.Millisecond
)

// Drain waits until all buffered writes of this node have arrived or have failed.
func (c *Client) Drain(ctx context.Context) error { return c.pool.Drain(ctx) }

// Quiesce waits for the end of all writing on this node, and returns when the homes know the result. A killed process
// disappears before the kernel has written back its mappings and closed its files, so writing ends when no file is open
// for writing. Quiesce does not wait for files that stay open without writes: open is their number.
func (c *Client) Quiesce(ctx context.Context) (open int, err error) {
	tick := time.NewTicker(quiescePoll)
	defer tick.Stop()
	idleSince, was := c.cfg.Now(), c.writeProgress()
	for {
		if now := c.writeProgress(); now != was || c.data.Stats().Writing > 0 {
			idleSince, was = c.cfg.Now(), now
		}
		open = c.files.writers()
		err = c.flushAll(ctx)
		if open == 0 || c.cfg.Now().Sub(idleSince) >= idleWriters {
			return open, err
		}
		select {
		case <-ctx.Done():
			return open, errors.Join(err, wait.Errno(ctx))
		case <-tick.C:
		}
	}
}

// writeProgress returns a number that differs after each write and each close.
func (c *Client) writeProgress() int64 {
	s := c.data.Stats()
	return s.WriteLocal + s.WriteRemote + c.pool.Stats().Buffered - int64(c.files.writers())
}

// flushAll flushes all files that are open here. A file that fails does not stop the others.
func (c *Client) flushAll(ctx context.Context) error {
	return wait.Each(ctx, c.files.list(), func(_ context.Context, f *File) error {
		if !c.files.hold(f) {
			return nil // its close has flushed it
		}
		defer c.release(f)
		return f.Flush(ctx)
	})
}
