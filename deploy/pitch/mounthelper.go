package pitch

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/mounts"
)

// maxHelpers bounds the concurrent mount helpers of a daemon, which run as root: two for each dataset with a cover or a
// view.
const maxHelpers = 8

// cover mounts a cover for the daemon.
func (c *child) cover(name string) ([]*os.File, error) {
	return c.helped(name, "no cover for a dataset", func(ctx context.Context) (*mounts.Mounting, error) {
		return c.over(name).Mount(ctx, c.k.program)
	})
}

// view makes a kernel view for the daemon.
func (c *child) view(name string) ([]*os.File, error) {
	if c.k.rec.Job.KernelView == job.KernelViewOff {
		return nil, unix.EPERM
	}
	return c.helped(name, "no kernel view for a dataset", func(ctx context.Context) (*mounts.Mounting, error) {
		return mounts.View{Cover: c.over(name), Stores: c.k.rec.Job.Dirs.Store}.Mount(ctx, c.k.program)
	})
}

func (c *child) over(name string) mounts.Cover {
	return mounts.Cover{Base: c.k.place.mount(), Name: name, UID: c.k.rec.Job.UID, GID: c.k.rec.Job.GID}
}

// helped starts a mount helper, so that the keeper never waits for an answer of the daemon. The helper continues after
// helped has returned.
func (c *child) helped(name, failed string, mount func(ctx context.Context) (*mounts.Mounting, error)) ([]*os.File, error) {
	if c.helpers.Add(1) > maxHelpers {
		c.helpers.Add(-1)
		c.k.log.WithField("dataset", name).WithField("helpers", maxHelpers).Warn(failed + ": too many mount helpers are running; it is read through FUSE")
		return nil, unix.EAGAIN
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.wg.Go(func() { // the backer is counted, so this does not race with kill
		defer cancel()
		select {
		case <-c.stop:
		case <-ctx.Done():
		}
	})
	m, err := mount(ctx)
	if err != nil {
		cancel()
		c.helperEnded(name, err)
		c.k.log.WithError(err).WithField("dataset", name).Warn(failed + ": it is read through FUSE")
		return nil, err
	}
	if c.conn != nil {
		c.conn.covers.Store(true)
	}
	c.wg.Go(func() {
		defer cancel()
		c.helperEnded(name, m.End())
	})
	return []*os.File{m.Dev, m.Talk}, nil
}

// helperEnded makes room for another helper, unless this one has not ended (EBUSY).
func (c *child) helperEnded(name string, err error) {
	if !errors.Is(err, unix.EBUSY) {
		c.helpers.Add(-1)
		return
	}
	c.k.log.WithError(err).WithField("dataset", name).Error("could not kill a mount helper: it hangs in the kernel; the job's end reports it")
	c.leftMu.Lock()
	defer c.leftMu.Unlock()
	c.left = append(c.left, err.Error())
}
