package main

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/mounts"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

const (
	// maxCovers bounds the datasets with a cover, a view or both, each of which takes
	// mount.CoverMemory.
	maxCovers = 4
	// coverMean is the largest mean file size, in bytes, of a dataset that gets a cover: one
	// read request.
	coverMean = 512 << 10
	// coverEnd bounds the wait for covers that are still in use at the end.
	coverEnd = time.Second
	// warmAfter is how long a covered dataset is staged before the kernel's name cache is
	// warmed. A dataset that is ready sooner gets a view, which needs no warming.
	warmAfter = time.Second
)

// coverer mounts over a dataset of this node. The caller serves the returned connection; end
// waits for the helper, which has the far end of a talk.
type coverer interface {
	cover(ctx context.Context, name string, talk *os.File) (dev *os.File, end func() error, err error)
	view(ctx context.Context, name string, talk *os.File) (dev *os.File, end func() error, err error)
}

// byKeeper mounts through the keeper.
type byKeeper struct{ keeper *daemon.Backing }

func (k byKeeper) cover(_ context.Context, name string, talk *os.File) (*os.File, func() error, error) {
	dev, err := k.keeper.Cover(name, talk)
	return dev, ended, err
}

func (k byKeeper) view(_ context.Context, name string, talk *os.File) (*os.File, func() error, error) {
	dev, err := k.keeper.View(name, talk)
	return dev, ended, err
}

// ended is the end of a helper for which the keeper waits.
func ended() error { return nil }

// byUs mounts as root, without a keeper.
type byUs struct{ job *job.File }

// self is this program.
const self = "/proc/self/exe"

func (u byUs) over(name string) mounts.Cover {
	return mounts.Cover{Base: u.job.Dirs.Mount, Name: name, UID: u.job.UID, GID: u.job.GID}
}

func (u byUs) cover(ctx context.Context, name string, talk *os.File) (*os.File, func() error, error) {
	return u.over(name).Mount(ctx, self, talk)
}

func (u byUs) view(ctx context.Context, name string, talk *os.File) (*os.File, func() error, error) {
	return mounts.View{Cover: u.over(name), Stores: u.job.Dirs.Store}.Mount(ctx, self, talk)
}

// covers gives datasets of small files FUSE connections of their own, and kernel views once
// they are ready. Both only make reading faster, so a failure is logged and nothing more.
type covers struct {
	node   *node
	by     coverer // nil: this process may not mount
	ctx    context.Context
	cancel context.CancelFunc
	memory int64          // of this machine, in bytes
	wg     sync.WaitGroup // helpers and waits for them

	mu   sync.Mutex
	seen map[metadata.DatasetID]*covered // under mu
}

// covered is the state of the mounts over a dataset. covers.mu guards it.
type covered struct {
	ds      cluster.Dataset
	sum     manifest.Summary
	mounts  bool         // something is being mounted
	covered bool         // a cover was tried
	viewed  bool         // a view was tried
	view    bool         // a view is there
	stale   bool         // the view that is being made must be made again
	showing *mountHelper // of the view
	waiting *mountHelper // of the cover; it may be asked to warm the names
	served  []*mount.Cover
}

func newCovers(n *node, by coverer) *covers {
	c := &covers{node: n, by: by, memory: mounts.Memory(), seen: make(map[metadata.DatasetID]*covered)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// covererOf returns nil where this node may not mount.
func (n *node) covererOf(start daemon.Start) coverer {
	switch keeper, ok := n.backer.(*daemon.Backing); {
	case ok:
		return byKeeper{keeper}
	case start.Fuse, os.Geteuid() != 0:
		return nil
	}
	return byUs{n.job}
}

// coverable reports whether a dataset is read faster through a cover: one of small files that
// fits in half of the memory, so that the kernel can cache it. Cached files are read twice as
// fast as by passthrough, uncached ones, if they are whole on this node, half as fast.
func coverable(sum manifest.Summary, memory int64) bool {
	return viewable(sum) && sum.Bytes <= memory/2
}

// viewable reports whether a dataset is read faster through a kernel view: one of small files,
// of any total size. Large files are mostly striped, and the main mount reads them better.
func viewable(sum manifest.Summary) bool {
	return sum.Files > 0 && sum.Bytes/sum.Files <= coverMean
}

// see is called for every readable dataset, more than once, and for one that ended.
func (c *covers) see(ds cluster.Dataset, sum manifest.Summary) {
	if ds.Phase.Ended() {
		c.forget(ds)
		return
	}
	if c.by == nil || !viewable(sum) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.seen[ds.ID]
	if x == nil {
		if len(c.seen) >= maxCovers {
			return
		}
		x = &covered{}
		c.seen[ds.ID] = x
	}
	x.ds, x.sum = ds, sum
	c.next(x)
}

// forget detaches the mounts over a dataset that ended, and its name. A mount that is being made is
// detached when it is there.
func (c *covers) forget(ds cluster.Dataset) {
	c.mu.Lock()
	if x := c.seen[ds.ID]; x != nil {
		delete(c.seen, ds.ID)
		x.ds, x.covered, x.viewed = ds, true, true
		if x.showing != nil {
			_ = x.showing.near.CloseWrite() // it may have ended already
		}
	}
	c.mu.Unlock()
	c.node.mount.Uncover(ds.Name)
}

// next starts the next mount over a dataset: first the cover, then the view upon it. mu is
// held.
func (c *covers) next(x *covered) {
	var do func(cluster.Dataset, manifest.Summary) *mount.Cover
	switch {
	case x.mounts || c.ctx.Err() != nil:
		return
	case !x.covered && coverable(x.sum, c.memory):
		x.covered, do = true, c.cover
	case !x.viewed && x.ds.Phase == cluster.Sealed && c.node.job.KernelView != job.KernelViewOff:
		x.viewed, do = true, c.view
		if x.waiting != nil {
			_ = x.waiting.near.CloseWrite() // a view needs no warming
		}
	default:
		return
	}
	x.mounts = true
	viewed, ds, sum := x.viewed, x.ds, x.sum
	c.wg.Go(func() {
		if c.done(x, do(ds, sum), viewed) {
			c.remake(x)
		}
	})
}

// done records the result of a mount, and reports whether it is stale.
func (c *covers) done(x *covered, m *mount.Cover, viewed bool) (stale bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x.mounts = false
	if m != nil {
		x.served = append(x.served, m)
		x.view = viewed
	}
	stale, x.stale = x.stale && x.view, false
	switch {
	case x.ds.Phase.Ended():
		c.node.mount.Uncover(x.ds.Name)
	case stale:
		x.view = false
		return true
	default:
		c.next(x)
	}
	return false
}

// cover makes a cover and waits until it is attached, so that the view comes after it. It
// returns nil if there is none.
func (c *covers) cover(ds cluster.Dataset, sum manifest.Summary) *mount.Cover {
	log := c.node.log.WithField("dataset", ds.Name)
	h, m, err := c.begin(ds, c.by.cover, func(dev *os.File) (*mount.Cover, error) {
		return c.node.mount.Cover(dev, metadata.SealedIno(ds.ID, metadata.DirPart, 0), c.node.ahead.of(ds.ID))
	})
	if err == nil {
		_ = mounts.TellDeep(h.near, sum.Depth > mounts.MaxRing) // made has the error
		if err = h.made(m); err != nil {
			h.close()
		}
	}
	if err != nil {
		log.WithError(err).Warn("could not mount the dataset's cover; reads use the main mount, which is slower")
		return nil
	}
	if err := h.attached(); err != nil {
		h.close()
		log.WithError(err).Warn("could not attach the dataset's cover; reads use the main mount, which is slower")
		return m
	}
	log.Info("the dataset has a cover")
	if sum.Names() > mounts.MostNames(c.memory) {
		h.close()
		return m
	}
	c.mu.Lock()
	if x := c.seen[ds.ID]; x != nil {
		x.waiting = h
	}
	c.mu.Unlock()
	c.wg.Go(func() {
		defer h.close()
		c.warm(ds, h, uint32(sum.Names()))
	})
	return m
}

// warm has the helper of a cover list all names, if staging takes longer than warmAfter: then
// the first open of a file waits for its bytes only.
func (c *covers) warm(ds cluster.Dataset, h *mountHelper, names uint32) {
	if !h.running(warmAfter) {
		return
	}
	c.mu.Lock()
	x := c.seen[ds.ID]
	whole := x == nil || x.ds.Phase == cluster.Sealed
	c.mu.Unlock()
	if whole {
		return
	}
	began := time.Now()
	if err := errors.Join(mounts.AskWarm(h.near, names), mounts.AwaitEnd(h.said)); err == nil {
		c.node.log.WithFields(logrus.Fields{"dataset": ds.Name, "names": names, "took": time.Since(began).Round(time.Millisecond)}).
			Debug("cached the names of the dataset in the kernel")
	}
}

// stop ends the mounting of covers and views.
func (c *covers) stop() {
	c.mu.Lock()
	c.cancel() // under mu: nothing is started afterwards
	c.mu.Unlock()
	c.wg.Wait()
}

// wait waits, after the unmount, until no process uses the covers, up to coverEnd.
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
