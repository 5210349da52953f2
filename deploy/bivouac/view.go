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

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/mounts"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// view makes a kernel view and mounts it; nil if it cannot.
func (c *covers) view(ds cluster.Dataset, sum manifest.Summary) *mount.Cover {
	log, began := c.node.log.WithField("dataset", ds.Name), time.Now()
	v := viewBuild{node: c.node, ds: ds, sum: sum}
	m, root, err := c.begin(ds, c.by.view, func(dev *os.File) (*mount.Cover, error) {
		return c.node.mount.Objects(dev, ds.ID, c.node.ahead.of(ds.ID))
	}, func(to net.Conn) error { return v.tell(c.ctx, to) })
	if err != nil {
		log.WithError(err).Info("could not make a kernel view of the dataset; it is read through FUSE")
		return nil
	}
	c.opens.watch(c.ctx, &c.wg, ds, root) // before programs see the dataset
	log.WithFields(logrus.Fields{"files": sum.Files, "took": time.Since(began).Round(time.Millisecond)}).
		Info("the dataset has a kernel view; the kernel reads its local files directly")
	return m
}

// viewBuild is a view under construction.
type viewBuild struct {
	node *node
	ds   cluster.Dataset
	sum  manifest.Summary
}

// tell sends the tree of the dataset to the helper.
func (v *viewBuild) tell(ctx context.Context, to net.Conn) error {
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

// complete adds the target of a link, or the location of a file.
func (v *viewBuild) complete(ctx context.Context, table *manifest.Table, n *mounts.Named) (err error) {
	switch n.Attr.Mode & syscall.S_IFMT {
	case syscall.S_IFLNK:
		n.Target, err = table.Readlink(ctx, n.Attr.Ino)
	case syscall.S_IFREG:
		hosts, err := v.node.client.Hosts(ctx, n.Attr)
		if err != nil {
			return err
		}
		n.Node = strings.Join(hosts, ",")
	}
	return err
}

// viewed reports whether a dataset has a view, or one is being made.
func (c *covers) viewed(id metadata.DatasetID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.seen[id]
	return x != nil && (x.view || x.mounts) && c.node.job.KernelView != job.KernelViewOff
}

// linkAll links the whole objects of a dataset, so that its view finds them. mu is held.
func (c *covers) linkAll(x *covered) {
	if !x.view || x.ds.Phase.Ended() || c.ctx.Err() != nil {
		return
	}
	if x.relink = x.links; x.links {
		return
	}
	x.links = true
	ds := x.ds
	c.wg.Go(func() {
		files, failed, err := c.link(ds)
		log := c.node.log.WithFields(logrus.Fields{"dataset": ds.Name, "local": files})
		if err != nil && c.ctx.Err() == nil {
			log.WithError(err).WithField("failed", failed).
				Warn("not all local files of the dataset are read by the kernel directly; the others are read through FUSE")
		}
		log.Debug("the kernel finds these local files of the dataset")
		c.mu.Lock()
		defer c.mu.Unlock()
		x.links = false
		if x.relink {
			c.linkAll(x)
		}
	})
}

// link links the whole objects of a dataset.
func (c *covers) link(ds cluster.Dataset) (files, failed int, err error) {
	store, _ := c.node.daemon.Table(ds.ID)
	table, ok := store.(*manifest.Table)
	if !ok {
		return 0, 0, nil // the dataset was removed
	}
	return linkFiles(c.ctx, table.Entries, c.node.client.LinkIfWhole)
}

// linkFiles calls link with each regular file. It counts the linked files and those that failed, with the error of the
// first.
func linkFiles(ctx context.Context, entries func(func(uint32, string, metadata.Attr) bool) error, link func(context.Context, *metadata.Attr) (bool, error)) (
	files, failed int, first error) {
	err := entries(func(_ uint32, name string, a metadata.Attr) bool {
		if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
			return true
		}
		switch here, err := link(ctx, &a); {
		case err != nil:
			failed++
			if first == nil {
				first = fmt.Errorf("%q: %w", name, err)
			}
		case here:
			files++
		}
		return ctx.Err() == nil
	})
	return files, failed, errors.Join(first, err)
}

// invalidate remakes the views of the datasets in which a local file is damaged or missing, so that the kernel does not
// read that file directly.
func (c *covers) invalidate(inos []metadata.Ino) {
	bad := make(map[metadata.DatasetID]bool)
	for _, ino := range inos {
		if !c.intact(ino) {
			bad[ino.Dataset()] = true
		}
	}
	for ds := range bad {
		c.renew(ds)
	}
}

// replaced is called when this node's replicas of a dataset have changed. The kernel keeps removed ones open until the
// view is remade.
func (c *covers) replaced(ds metadata.DatasetID, gone bool) {
	if gone {
		c.renew(ds)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.seen[ds]; x != nil {
		c.linkAll(x)
	}
}

// renew remakes the view of a dataset.
func (c *covers) renew(ds metadata.DatasetID) {
	c.mu.Lock()
	x := c.seen[ds]
	if x == nil || x.mounts || !x.view {
		if x != nil {
			x.again = x.mounts // the view in progress may refer to the old file
		}
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.remake(x)
}

// remake unmounts the view of a dataset and makes it again. This is the only mount over a directory that programs
// already see.
func (c *covers) remake(x *covered) {
	c.mu.Lock()
	name, ended := x.ds.Name, c.seen[x.ds.ID] != x
	x.view = false
	c.mu.Unlock()
	if ended {
		return // a successor may have the name
	}
	c.opens.end(x.ds.ID)
	c.uncover(name)
	c.node.log.WithField("dataset", name).Info("local files of the dataset have changed; making the kernel view again")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mount(x)
}

// intact reports whether a file that belongs on this node is there. If it is not, the kernel no longer finds it.
func (c *covers) intact(ino metadata.Ino) bool {
	a, err := c.node.client.Getattr(c.ctx, ino)
	if err != nil {
		return false
	}
	mine, here, err := fsclient.RelinkWhole(c.ctx, c.node.client, &a)
	return err == nil && (here || !mine)
}
