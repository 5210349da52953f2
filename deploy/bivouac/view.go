package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/deploy/mounts"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// view has a kernel view of a dataset made; nil is that there is none. It is shown
// later.
func (c *covers) view(ds cluster.Dataset, sum manifest.Summary) *mount.Cover {
	log, began := c.node.log.WithField("dataset", ds.Name), time.Now()
	v := viewing{node: c.node, ds: ds, sum: sum}
	h, m, err := v.make(c)
	if err != nil {
		log.WithError(err).Info("the dataset has no kernel view")
		return nil
	}
	log.WithFields(logrus.Fields{"files": sum.Files, "here": v.here, "took": time.Since(began).Round(time.Millisecond)}).
		Info("a kernel view is made; it is shown when no process is in a directory of the dataset but to rest")
	c.mu.Lock()
	c.seen[ds.ID].showing = h
	c.mu.Unlock()
	c.wg.Go(func() {
		defer h.close()
		if err := h.shown(); err != nil {
			log.WithError(err).Debug("the kernel view is not shown")
			return
		}
		log.WithField("took", time.Since(began).Round(time.Millisecond)).Info("the kernel reads what is here of the dataset by itself")
	})
	return m
}

// viewing is a view that is being made.
type viewing struct {
	node *node
	ds   cluster.Dataset
	sum  manifest.Summary
	here int64 // names of files that are whole in objects of this node
}

func (v *viewing) make(c *covers) (*helping, *mount.Cover, error) {
	h, m, err := c.begin(v.ds, c.by.view, func(dev *os.File) (*mount.Cover, error) {
		return v.node.mount.Objects(dev, v.ds.ID)
	})
	if err != nil {
		return nil, nil, err
	}
	if err = v.tell(c.ctx, h.near); err != nil {
		_ = h.near.CloseWrite() // who makes the view is to fail
	}
	if e := h.placed(m); e != nil {
		h.close()
		return nil, nil, errors.Join(e, err)
	}
	return h, m, nil
}

// tell says what is in the dataset.
func (v *viewing) tell(ctx context.Context, to net.Conn) error {
	store, ok := v.node.daemon.Table(v.ds.ID)
	table, is := store.(*manifest.Table)
	if !ok || !is {
		return fmt.Errorf("manifest of %s: %w", v.ds.Name, syscall.ENOENT)
	}
	root, err := table.Getattr(ctx, table.Root())
	if err != nil {
		return err
	}
	w, err := mounts.NewTree(to, uint32(v.sum.Dirs+1), root)
	if err != nil {
		return err
	}
	var bad error
	err = table.Entries(func(dir uint32, name string, a metadata.Attr) bool {
		n := mounts.Named{Dir: dir, Name: name, Attr: a}
		if bad = v.complete(ctx, table, &n); bad == nil {
			bad = w.Add(n)
		}
		return bad == nil
	})
	if err = errors.Join(bad, err); err != nil {
		return err
	}
	return w.End()
}

// complete adds what the name's entry does not have.
func (v *viewing) complete(ctx context.Context, table *manifest.Table, n *mounts.Named) (err error) {
	switch n.Attr.Mode & syscall.S_IFMT {
	case syscall.S_IFLNK:
		n.Target, err = table.Readlink(ctx, n.Attr.Ino)
	case syscall.S_IFREG:
		hosts, err := v.node.client.Hosts(ctx, n.Attr)
		if err != nil {
			return err
		}
		n.Node = strings.Join(hosts, ",")
		if _, n.Here, err = v.node.client.WholeHere(ctx, &n.Attr); err != nil {
			return err
		}
		if n.Here {
			v.here++
		}
	}
	return err
}

// lost takes away the views of datasets in which a file is no more what this node
// is to have, so that the kernel does not read that by itself, and has others made.
func (c *covers) lost(inos []metadata.Ino) {
	bad := make(map[metadata.DatasetID]bool)
	for _, ino := range inos {
		if !bad[ino.Dataset()] && !c.sound(ino) {
			bad[ino.Dataset()] = true
		}
	}
	for ds := range bad {
		c.mu.Lock()
		x := c.seen[ds]
		there := x != nil && x.view
		if x != nil {
			x.stale = x.viewed && x.mounts // it may have been told of the file as it was
		}
		if there {
			x.view = false
		}
		c.mu.Unlock()
		if there {
			c.again(x)
		}
	}
}

// again takes away all that lies over a dataset, and makes it once more.
func (c *covers) again(x *covered) {
	c.mu.Lock()
	name, showing := x.ds.Name, x.showing
	c.mu.Unlock()
	if showing != nil {
		showing.cancel() // else it could show what is mounted next
	}
	c.node.mount.Uncover(name)
	c.node.log.WithField("dataset", name).Info("the kernel view has gone with a file that is bad")
	c.mu.Lock()
	defer c.mu.Unlock()
	x.covered, x.viewed = false, false
	c.next(x)
}

// sound reports whether a file is here, or is not to be.
func (c *covers) sound(ino metadata.Ino) bool {
	a, err := c.node.client.Getattr(c.ctx, ino)
	if err != nil {
		return false
	}
	mine, here, err := c.node.client.WholeHere(c.ctx, &a)
	return err == nil && mine == here
}
