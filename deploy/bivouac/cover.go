package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/mounts"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

const (
	// maxCovers bounds the datasets with a cover or a view, each of which takes mount.CoverMemory.
	maxCovers = 4
	// coverMean is the largest mean file size, in bytes, of a dataset that gets a cover: one
	// read request.
	coverMean = 512 << 10
	// coverEnd bounds the wait at the end for covers that are still in use.
	coverEnd = time.Second
)

// coverer mounts over a dataset of this node.
type coverer interface {
	cover(ctx context.Context, name string) (*mounts.Mounting, error)
	view(ctx context.Context, name string) (*mounts.Mounting, error)
}

// byKeeper mounts through the keeper.
type byKeeper struct{ keeper *daemon.Backing }

func (k byKeeper) cover(_ context.Context, name string) (*mounts.Mounting, error) {
	dev, talk, err := k.keeper.Cover(name)
	return &mounts.Mounting{Dev: dev, Talk: talk, End: ended}, err
}

func (k byKeeper) view(_ context.Context, name string) (*mounts.Mounting, error) {
	dev, talk, err := k.keeper.View(name)
	return &mounts.Mounting{Dev: dev, Talk: talk, End: ended}, err
}

// ended is the End of a mount whose helper the keeper waits for.
func ended() error { return nil }

// byUs mounts as root, without a keeper.
type byUs struct{ job *job.File }

// self is this program.
const self = "/proc/self/exe"

func (u byUs) over(name string) mounts.Cover {
	return mounts.Cover{Base: u.job.Dirs.Mount, Name: name, UID: u.job.UID, GID: u.job.GID}
}

func (u byUs) cover(ctx context.Context, name string) (*mounts.Mounting, error) {
	return u.over(name).Mount(ctx, self)
}

func (u byUs) view(ctx context.Context, name string) (*mounts.Mounting, error) {
	return mounts.View{Cover: u.over(name), Stores: u.job.Dirs.Store}.Mount(ctx, self)
}

// covers mounts over datasets of small files, before programs see them: a kernel view, or a cover where a view is
// impossible. Both only make reads faster, so a failure is only logged.
type covers struct {
	node   *node
	by     coverer // nil: this process may not mount
	ctx    context.Context
	cancel context.CancelFunc
	memory int64          // of this machine, in bytes
	wg     sync.WaitGroup // helpers, and goroutines that wait for them

	opens   *opens
	uncover func(name string) // Mount.Uncover
	reveal  func()            // called when a dataset is no longer hidden
	active  func(name string) (cluster.Dataset, bool)

	mu    sync.Mutex                      // lookups of names wait for it, so call no method of the mount with it held
	seen  map[metadata.DatasetID]*covered // under mu
	shown map[metadata.DatasetID]bool     // under mu: no longer hidden; also recorded in files
}

// covered is the state of the mounts over a dataset, guarded by covers.mu.
type covered struct {
	ds     cluster.Dataset
	sum    manifest.Summary
	mounts bool // a mount is in progress
	view   bool // a view is mounted
	again  bool // the view must be remade
	links  bool // links to whole objects are being made
	relink bool // links must be made again
	served []*mount.Cover
}

func newCovers(n *node, by coverer) *covers {
	c := &covers{
		node: n, by: by, memory: machineMemory(), opens: newOpens(n),
		seen: make(map[metadata.DatasetID]*covered), shown: make(map[metadata.DatasetID]bool),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.uncover = func(name string) { n.mount.Uncover(name) }
	c.reveal = func() {
		n.mount.Reveal()
		n.daemon.Nudge()
	}
	c.active = func(name string) (cluster.Dataset, bool) { return n.daemon.View().Active(name) }
	return c
}

// covererOf returns the coverer of this node; nil if the node may not mount.
func (n *node) covererOf(start daemon.Start) coverer {
	switch keeper, ok := n.backer.(*daemon.Backing); {
	case ok:
		return byKeeper{keeper}
	case start.Fuse, os.Geteuid() != 0:
		return nil
	}
	return byUs{n.job}
}

// coverable reports whether a cover makes reads of a dataset faster: it has small files and fits in half of the memory,
// so that the kernel can cache it. Cached files are read twice as fast as by passthrough; uncached files that are whole
// on this node, half as fast.
func coverable(ds cluster.Dataset, memory int64) bool {
	return viewable(ds) && ds.Bytes <= memory/2
}

// viewable reports whether a kernel view makes reads of a dataset faster: it has small files, of any total size. Large
// files are mostly striped, and the main mount reads them better.
func viewable(ds cluster.Dataset) bool {
	return ds.Files > 0 && ds.Bytes/ds.Files <= coverMean
}

// hidden reports whether a dataset is hidden from programs because its mount is still being made. A dataset that other
// nodes already show is not hidden, nor one that programs of this node saw before the daemon was restarted.
func (c *covers) hidden(ds cluster.Dataset) bool {
	if c.by == nil || ds.Phase != cluster.Publishing || !viewable(ds) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.shown[ds.ID] {
		_, err := os.Stat(c.shownFile(ds.ID))
		c.shown[ds.ID] = err == nil
	}
	return !c.shown[ds.ID]
}

// shownFile returns a file that exists if programs of this node may have seen a dataset.
func (c *covers) shownFile(id metadata.DatasetID) string {
	return filepath.Join(c.node.job.Dirs.Run, fmt.Sprintf("shown-%d", id))
}

// mountedFile returns a file that exists if this or an earlier run of the daemon may have mounted over a dataset.
func (c *covers) mountedFile(id metadata.DatasetID) string {
	return filepath.Join(c.node.job.Dirs.Run, fmt.Sprintf("mounted-%d", id))
}

func (c *covers) mayBeMounted(id metadata.DatasetID) bool {
	_, err := os.Stat(c.mountedFile(id))
	return err == nil
}

// prepare makes the kernel forget the name of a dataset before the first mount over it. The name may be left from an
// earlier run of the daemon, for a dataset that has ended: when the kernel looks it up again, it detaches the mounts
// over it.
func (c *covers) prepare(ds cluster.Dataset) {
	if c.mayBeMounted(ds.ID) {
		return
	}
	c.uncover(ds.Name)
	if err := os.WriteFile(c.mountedFile(ds.ID), nil, 0o600); err != nil {
		c.node.log.WithError(err).WithField("dataset", ds.Name).Warn("could not record the dataset's mount: it is mounted again after a daemon restart")
	}
}

// show ends the hiding of a dataset.
func (c *covers) show(id metadata.DatasetID) {
	if err := os.WriteFile(c.shownFile(id), nil, 0o600); err != nil {
		c.node.log.WithError(err).Warn("could not record that programs have seen the dataset: it may vanish briefly if the daemon restarts")
	}
	c.mu.Lock()
	c.shown[id] = true
	c.mu.Unlock()
	c.reveal()
}

// see is called for every readable dataset, possibly more than once, and for one that ended.
func (c *covers) see(ds cluster.Dataset, sum manifest.Summary) {
	if ds.Phase.Ended() {
		c.forget(ds)
		return
	}
	if c.by == nil || !viewable(ds) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.seen[ds.ID]
	switch {
	case x != nil:
		if x.ds.Phase != ds.Phase {
			c.linkAll(x)
		}
		x.ds = ds
	case len(c.seen) < maxCovers:
		x = &covered{ds: ds, sum: sum}
		c.seen[ds.ID] = x
		c.mount(x)
	case !c.shown[ds.ID]:
		c.wg.Go(func() { c.show(ds.ID) })
	}
}

// forget detaches the mounts over an ended dataset, and makes the kernel forget its name. A mount in progress is
// detached once it is made.
func (c *covers) forget(ds cluster.Dataset) {
	next, taken := c.active(ds.Name)
	taken = taken && c.mayBeMounted(next.ID)
	c.mu.Lock()
	x := c.seen[ds.ID]
	if x != nil {
		delete(c.seen, ds.ID)
		x.ds = ds
		taken = false
	}
	// If this run of the daemon has not mounted over ds, a mount there may belong to its successor.
	keep := c.succeeded(ds) || taken
	c.mu.Unlock()
	c.opens.end(ds.ID)
	if !keep {
		c.uncover(ds.Name)
	}
	c.show(ds.ID)
}

// succeeded reports whether another dataset with the same name has mounts, or gets some. These must not be detached
// with those of ds, which has ended. mu is held.
func (c *covers) succeeded(ds cluster.Dataset) bool {
	for id, x := range c.seen {
		if id != ds.ID && x.ds.Name == ds.Name {
			return true
		}
	}
	return false
}

// mount starts to mount over a dataset. mu is held.
func (c *covers) mount(x *covered) {
	if x.mounts || x.ds.Phase.Ended() || c.ctx.Err() != nil {
		return
	}
	x.mounts = true
	ds, sum := x.ds, x.sum
	c.wg.Go(func() {
		c.prepare(ds)
		m, view := c.make(ds, sum)
		detach, again := c.done(x, m, view)
		if detach {
			c.uncover(ds.Name)
		}
		c.show(ds.ID)
		if !detach && again {
			c.remake(x)
		}
	})
}

// make mounts a view or a cover, and reports which; m is nil if it could mount neither.
func (c *covers) make(ds cluster.Dataset, sum manifest.Summary) (m *mount.Cover, view bool) {
	if c.node.job.KernelView != job.KernelViewOff {
		if m = c.view(ds, sum); m != nil {
			return m, true
		}
	}
	if coverable(ds, c.memory) && c.ctx.Err() == nil {
		m = c.cover(ds)
	}
	return m, false
}

// done records the result of a mount. detach: the dataset has ended meanwhile; again: the view must be remade.
func (c *covers) done(x *covered, m *mount.Cover, view bool) (detach, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x.mounts = false
	if m != nil {
		x.served = append(x.served, m)
		x.view = view
	}
	if x.ds.Phase.Ended() {
		c.opens.end(x.ds.ID)
	}
	again, x.again = x.again && x.view, false
	c.linkAll(x)
	return m != nil && x.ds.Phase.Ended() && !c.succeeded(x.ds), again
}

// cover mounts a cover; nil if it cannot.
func (c *covers) cover(ds cluster.Dataset) *mount.Cover {
	root := metadata.SealedIno(ds.ID, metadata.DirPart, 0)
	m, _, err := c.begin(ds, c.by.cover, func(dev *os.File) (*mount.Cover, error) {
		return c.node.mount.Cover(dev, root, c.node.ahead.of(ds.ID))
	}, func(to net.Conn) error { return mounts.TellRoot(to, root) })
	log := c.node.log.WithField("dataset", ds.Name)
	if err != nil {
		log.WithError(err).Warn("could not mount the dataset's cover; reads use the main mount, which is slower")
		return nil
	}
	log.Info("mounted a cover over the dataset")
	return m
}

// stop ends the mounting of covers and views.
func (c *covers) stop() {
	c.mu.Lock()
	c.cancel() // under mu: no mount starts afterwards
	c.mu.Unlock()
	c.wg.Wait()
}

// wait waits after the unmount, up to coverEnd, until no process uses the covers.
func (c *covers) wait() {
	t := time.NewTimer(coverEnd)
	defer t.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.seen {
		for _, m := range x.served {
			select {
			case <-m.Served():
			case <-t.C:
				c.node.log.Warn("a process still used a dataset at the end of the job; its mount was detached")
				return
			}
		}
	}
}
