package main

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// view has a kernel view of a dataset made; nil is that there is none.
func (c *covers) view(ds cluster.Dataset, sum manifest.Summary) *mount.Cover {
	if !c.awaitNoWalk() {
		return nil
	}
	log, began := c.node.log.WithField("dataset", ds.Name), time.Now()
	v := viewing{node: c.node, ds: ds, sum: sum}
	m, err := v.make(c.ctx, c.by)
	if err != nil {
		log.WithError(err).Info("the dataset has no kernel view")
		return nil
	}
	log.WithFields(logrus.Fields{"files": sum.Files, "here": v.here, "took": time.Since(began).Round(time.Millisecond)}).
		Info("the dataset has a kernel view: the kernel reads what is here by itself")
	return m
}

// walkPause is how long nobody must have listed a directory before a view is put
// over one.
const walkPause = time.Second

// awaitNoWalk waits until nobody seems to walk a tree of this node's mount: find and
// du go back up by "..", which leads into what was mounted meanwhile, and then end
// with ENOENT. It reports false if the mount ends before.
func (c *covers) awaitNoWalk() bool {
	t := time.NewTicker(walkPause)
	defer t.Stop()
	for before := int64(-1); ; {
		calls := c.node.mount.Stats().Calls
		now := calls["opendir"] + calls["readdir"] + calls["readdirplus"]
		if now == before {
			return true
		}
		before = now
		select {
		case <-c.ctx.Done():
			return false
		case <-t.C:
		}
	}
}

// viewing is a view that is being made.
type viewing struct {
	node *node
	ds   cluster.Dataset
	sum  manifest.Summary
	here int64 // names of files that are whole in objects of this node
}

func (v *viewing) make(ctx context.Context, by coverer) (*mount.Cover, error) {
	near, far, err := mounts.TreeSocket()
	if err != nil {
		return nil, err
	}
	defer near.Close()
	defer context.AfterFunc(ctx, func() { _ = near.Close() })()
	dev, end, err := by.view(ctx, v.ds.Name, far)
	_ = far.Close() // who makes the view has its own
	if err != nil {
		return nil, err
	}
	defer end()
	m, err := v.node.mount.Objects(dev, v.ds.ID)
	_ = dev.Close() // m has its own
	if err != nil {
		_ = near.Close() // then end does not wait long
		return nil, err
	}
	go m.Serve() // ends with the view, or with who fails to make it
	err = v.tell(ctx, near)
	if e := mounts.AwaitView(near); e != nil {
		<-m.Served()
		return nil, errors.Join(e, err)
	}
	return m, err
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
	name := x.ds.Name
	c.mu.Unlock()
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
