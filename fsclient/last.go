package fsclient

import (
	"context"
	"errors"
	"time"
)

const (
	// lastCalm is how long those who have files open to write may write nothing
	// until they are taken for done with it.
	lastCalm = 2 * time.Second
	lastTick = 20 * time.Millisecond
)

// LastWrites waits for the end of all writing on this node, and returns when the
// homes know what was written. A process that is killed is gone before the kernel
// has written what it had mapped, and closed what it had open: so there is an
// end when nobody has a file open to write. Who has one for longer, and writes
// nothing, is not waited for: open is how many of them there are.
func (c *Client) LastWrites(ctx context.Context) (open int, err error) {
	tick := time.NewTicker(lastTick)
	defer tick.Stop()
	calm, was := c.cfg.Now(), c.changes()
	for {
		if now := c.changes(); now != was || c.stats.writing.Load() > 0 {
			calm, was = c.cfg.Now(), now
		}
		open = c.files.writers()
		err = c.flushAll(ctx)
		if open == 0 || c.cfg.Now().Sub(calm) >= lastCalm {
			return open, err
		}
		select {
		case <-ctx.Done():
			return open, errors.Join(err, ctxErrno(ctx))
		case <-tick.C:
		}
	}
}

// changes is another number after a write or a close.
func (c *Client) changes() int64 {
	s := &c.stats
	return s.writeLocal.Load() + s.writeRemote.Load() + s.gathered.Load() - int64(c.files.writers())
}

// flushAll tells the homes of all files that are open here what was written.
func (c *Client) flushAll(ctx context.Context) error {
	// One that fails does not stop the others.
	return each(ctx, c.files.list(), func(_ context.Context, f *File) error {
		if !c.files.hold(f) {
			return nil // who closed it has done that
		}
		defer c.release(f)
		return f.Flush(ctx)
	})
}
