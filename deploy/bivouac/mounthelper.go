package main

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/bivouacfs/bivouac/deploy/mounts"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// mountHelper is the talk with a process that mounts over a dataset.
type mountHelper struct {
	near  *net.UnixConn
	said  *bufio.Reader // of near
	stop  func() bool   // undoes the context.AfterFunc that ends it with the covers
	ended chan struct{} // closed with the talk
}

// begin starts a helper with by, and serves its connection with the Cover that adopt makes.
func (c *covers) begin(ds cluster.Dataset, by func(context.Context, string, *os.File) (*os.File, func() error, error), adopt func(*os.File) (*mount.Cover, error)) (*mountHelper, *mount.Cover, error) {
	near, far, err := mounts.Talk()
	if err != nil {
		return nil, nil, err
	}
	h := &mountHelper{near: near, said: bufio.NewReader(near), ended: make(chan struct{})}
	h.stop = context.AfterFunc(c.ctx, func() { _ = near.Close() })
	dev, end, err := by(c.ctx, ds.Name, far)
	_ = far.Close() // the helper has its own
	if err != nil {
		h.close()
		return nil, nil, err
	}
	c.wg.Go(func() {
		if err := end(); err != nil {
			c.node.log.WithError(err).WithField("dataset", ds.Name).Error("a mount helper did not exit at the end of the job: kill it")
		}
	})
	m, err := adopt(dev)
	_ = dev.Close() // m has its own
	if err != nil {
		h.close() // which ends the helper
		return nil, nil, err
	}
	go m.Serve() // ends with the mount, or with the helper that fails to make it
	return h, m, nil
}

// made waits until m is mounted, though not yet attached. After an error m has ended.
func (h *mountHelper) made(m *mount.Cover) error {
	err := mounts.AwaitMade(h.said)
	if err != nil {
		<-m.Served()
	}
	return err
}

// attached waits until the mount is attached to the dataset's directory.
func (h *mountHelper) attached() error { return mounts.AwaitAttached(h.said) }

// running reports whether the helper of an attached mount is still there after d.
func (h *mountHelper) running(d time.Duration) bool {
	_ = h.near.SetReadDeadline(time.Now().Add(d)) // a socket has deadlines
	_, err := h.said.ReadByte()
	_ = h.near.SetReadDeadline(time.Time{})
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// close ends the talk, which ends the helper.
func (h *mountHelper) close() {
	h.stop()
	_ = h.near.Close() // nothing more is expected
	close(h.ended)
}

// cancel ends a helper that waits to attach its mount, and waits for its end.
func (h *mountHelper) cancel() {
	_ = h.near.CloseWrite() // the helper may have ended already
	<-h.ended
}
