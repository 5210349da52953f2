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

// helping is the talk with a helper that mounts over a dataset.
type helping struct {
	near  *net.UnixConn
	said  *bufio.Reader // of near
	stop  func() bool   // of what ends it with the covers
	ended chan struct{} // closed when nobody waits for it any more
}

// begin has a helper mount by, and what it has mounted served by what adopt makes of
// it.
func (c *covers) begin(ds cluster.Dataset, by func(context.Context, string, *os.File) (*os.File, func() error, error), adopt func(*os.File) (*mount.Cover, error)) (*helping, *mount.Cover, error) {
	near, far, err := mounts.Talk()
	if err != nil {
		return nil, nil, err
	}
	h := &helping{near: near, said: bufio.NewReader(near), ended: make(chan struct{})}
	h.stop = context.AfterFunc(c.ctx, func() { _ = near.Close() })
	dev, end, err := by(c.ctx, ds.Name, far)
	_ = far.Close() // who mounts has its own
	if err != nil {
		h.close()
		return nil, nil, err
	}
	c.wg.Go(func() {
		if err := end(); err != nil {
			c.node.log.WithError(err).WithField("dataset", ds.Name).Error("who mounts is left")
		}
	})
	m, err := adopt(dev)
	_ = dev.Close() // m has its own
	if err != nil {
		h.close() // then who mounts ends
		return nil, nil, err
	}
	go m.Serve() // ends with the mount, or with who fails to make it
	return h, m, nil
}

// placed waits until m is mounted where it shall be, though nobody may see it. If it is
// not, m has ended.
func (h *helping) placed(m *mount.Cover) error {
	err := mounts.AwaitPlaced(h.said)
	if err != nil {
		<-m.Served()
	}
	return err
}

// shown waits until the mount is what is seen of the dataset; an error is that it will
// not be.
func (h *helping) shown() error { return mounts.AwaitShown(h.said) }

// silent waits so long for the end of a helper that has shown its mount, and reports whether it goes on.
func (h *helping) silent(d time.Duration) bool {
	_ = h.near.SetReadDeadline(time.Now().Add(d)) // a socket has deadlines
	_, err := h.said.ReadByte()
	_ = h.near.SetReadDeadline(time.Time{})
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// close ends the talk, and so the helper.
func (h *helping) close() {
	h.stop()
	_ = h.near.Close() // what there was to be heard was
	close(h.ended)
}

// cancel has a helper that shows end, and waits until it has.
func (h *helping) cancel() {
	_ = h.near.CloseWrite() // it may have ended by itself
	<-h.ended
}
