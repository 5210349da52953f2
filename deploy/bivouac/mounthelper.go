package main

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/bivouacfs/bivouac/deploy/mounts"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

const (
	// helperTime bounds the work of a helper; it is longer than the bound of the keeper.
	helperTime = 150 * time.Second
	// helperEnd bounds the wait for a failed helper to end.
	helperEnd = 10 * time.Second
)

// begin starts a helper with by, serves its connection with the Cover that adopt makes, sends the helper its input with
// tell, and waits until it has mounted. It also returns the root of a view. After an error the Cover has ended.
func (c *covers) begin(ds cluster.Dataset, by func(context.Context, string) (*mounts.Mounting, error),
	adopt func(*os.File) (*mount.Cover, error), tell func(net.Conn) error) (m *mount.Cover, root *os.File, err error) {
	h, err := by(c.ctx, ds.Name)
	if err != nil {
		return nil, nil, err
	}
	c.wg.Go(func() {
		if err := h.End(); err != nil {
			c.node.log.WithError(err).WithField("dataset", ds.Name).Error("a mount helper did not exit at the end of the job: kill it")
		}
	})
	near, err := mounts.Conn(h.Talk)
	if err != nil {
		return nil, nil, errors.Join(err, h.Dev.Close())
	}
	defer near.Close()                                            // ends a helper that still listens
	defer context.AfterFunc(c.ctx, func() { _ = near.Close() })() // it may be closed already
	_ = near.SetDeadline(time.Now().Add(helperTime))              // bounds how long an unkillable helper hides it
	m, err = adopt(h.Dev)
	_ = h.Dev.Close() // m has its own
	if err != nil {
		return nil, nil, err
	}
	go m.Serve() // ends with the mount, or with a helper that fails to make it
	if err = tell(near); err != nil {
		_ = near.CloseWrite() // makes the helper fail
	}
	root, e := mounts.AwaitMounted(near)
	if e != nil {
		_ = near.Close()
		select {
		case <-m.Served():
		case <-time.After(helperEnd): // the helper hangs in a drive, and holds the mount
		}
		return nil, nil, errors.Join(e, err)
	}
	return m, root, nil
}
