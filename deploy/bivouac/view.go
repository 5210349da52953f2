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

// view makes a kernel view, which is attached later. It returns nil if there is none.
func (c *covers) view(ds cluster.Dataset, sum manifest.Summary) *mount.Cover {
	log, began := c.node.log.WithField("dataset", ds.Name), time.Now()
	v := viewBuild{node: c.node, ds: ds, sum: sum}
	h, m, err := v.make(c)
	if err != nil {
		log.WithError(err).Info("could not make a kernel view of the dataset; it is read through FUSE")
		return nil
	}
	log.WithFields(logrus.Fields{"files": sum.Files, "local": v.here, "took": time.Since(began).Round(time.Millisecond)}).
		Info("kernel view made; it will be attached when no process walks the dataset")
	c.mu.Lock()
	if x := c.seen[ds.ID]; x != nil {
		x.showing = h
	} else {
		_ = h.near.CloseWrite() // the dataset was removed
	}
	c.mu.Unlock()
	c.wg.Go(func() {
		defer h.close()
		if err := h.attached(); err != nil {
			log.WithError(err).Debug("kernel view not attached")
			return
		}
		c.mu.Lock()
		gone := c.seen[ds.ID] == nil
		c.mu.Unlock()
		if gone {
			c.node.mount.Uncover(ds.Name)
			return
		}
		log.WithField("took", time.Since(began).Round(time.Millisecond)).Info("kernel view attached; the kernel reads the dataset's local files directly")
	})
	return m
}

// viewBuild is a view that is being made.
type viewBuild struct {
	node *node
	ds   cluster.Dataset
	sum  manifest.Summary
	here int64 // files that are whole on this node
}

func (v *viewBuild) make(c *covers) (*mountHelper, *mount.Cover, error) {
	h, m, err := c.begin(v.ds, c.by.view, func(dev *os.File) (*mount.Cover, error) {
		return v.node.mount.Objects(dev, v.ds.ID, v.node.ahead.of(v.ds.ID))
	})
	if err != nil {
		return nil, nil, err
	}
	if err = v.tell(c.ctx, h.near); err != nil {
		_ = h.near.CloseWrite() // the helper is to fail
	}
	if e := h.made(m); e != nil {
		h.close()
		return nil, nil, errors.Join(e, err)
	}
	return h, m, nil
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
		if _, n.Here, err = v.node.client.WholeHere(ctx, &n.Attr); err != nil {
			return err
		}
		if n.Here {
			v.here++
		}
	}
	return err
}

// invalidate remakes the views of the datasets in which a local file is damaged or missing,
// so that the kernel does not read it directly.
func (c *covers) invalidate(inos []metadata.Ino) {
	bad := make(map[metadata.DatasetID]bool)
	for _, ino := range inos {
		if !bad[ino.Dataset()] && !c.intact(ino) {
			bad[ino.Dataset()] = true
		}
	}
	for ds := range bad {
		if x := c.outdate(ds); x != nil {
			c.remake(x)
		}
	}
}

// outdate has a view that is being made made again; if it is there, outdate returns it, for the
// caller to remake.
func (c *covers) outdate(ds metadata.DatasetID) *covered {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.seen[ds]
	if x == nil {
		return nil
	}
	x.stale = x.viewed && x.mounts // its tree may describe a file as it was
	if !x.view {
		return nil
	}
	x.view = false
	return x
}

// renew remakes the view of a dataset after this node's replicas of it have changed: the kernel
// reads new ones by itself, and closes those that are gone.
func (c *covers) renew(ds metadata.DatasetID) {
	x := c.outdate(ds)
	if x == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() == nil {
		c.wg.Go(func() { c.remake(x) })
	}
}

// remake unmounts cover and view of a dataset and makes them again.
func (c *covers) remake(x *covered) {
	c.mu.Lock()
	name, showing := x.ds.Name, x.showing
	c.mu.Unlock()
	if showing != nil {
		showing.cancel() // it must not attach the old view
	}
	c.node.mount.Uncover(name)
	c.node.log.WithField("dataset", name).Info("local files of the dataset have changed; making the kernel view again")
	c.mu.Lock()
	defer c.mu.Unlock()
	x.covered, x.viewed = false, false
	c.next(x)
}

// intact reports whether a file is on this node if it belongs here.
func (c *covers) intact(ino metadata.Ino) bool {
	a, err := c.node.client.Getattr(c.ctx, ino)
	if err != nil {
		return false
	}
	mine, here, err := c.node.client.WholeHere(c.ctx, &a)
	return err == nil && (here || !mine)
}
