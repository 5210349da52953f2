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
	// maxCovers is how many datasets have a cover, a view or both at a time, each
	// of which takes mount.CoverMemory.
	maxCovers = 4
	// coverMean is the mean size of a file, in bytes, up to which a dataset gets a
	// cover: what one request brings.
	coverMean = 512 << 10
	// coverEnd is how long covers that are in use are waited for at the end.
	coverEnd = time.Second
	// visitAfter is how long a dataset with a cover is on its way before the kernel is to know its
	// names: those of one that comes sooner are known by its view, or cost little.
	visitAfter = time.Second
)

// coverer mounts over a dataset of this node. What it returns has to be served;
// end waits for what goes on after that. Who mounts has the far end of a talk.
type coverer interface {
	cover(ctx context.Context, name string, talk *os.File) (dev *os.File, end func() error, err error)
	view(ctx context.Context, name string, talk *os.File) (dev *os.File, end func() error, err error)
}

// byKeeper has the keeper mount.
type byKeeper struct{ keeper *daemon.Backing }

func (k byKeeper) cover(_ context.Context, name string, talk *os.File) (*os.File, func() error, error) {
	dev, err := k.keeper.Cover(name, talk)
	return dev, ended, err
}

func (k byKeeper) view(_ context.Context, name string, talk *os.File) (*os.File, func() error, error) {
	dev, err := k.keeper.View(name, talk)
	return dev, ended, err
}

// ended is for what somebody else waits for.
func ended() error { return nil }

// byUs mounts, as root.
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

// covers gives the datasets of small files connections of their own, and kernel
// views when all is in its place. They only make reading faster, so that what goes
// wrong with one is logged and no more.
type covers struct {
	node   *node
	by     coverer // nil is that nobody may mount
	ctx    context.Context
	cancel context.CancelFunc
	memory int64          // of this machine, in bytes
	wg     sync.WaitGroup // of what is being mounted

	mu   sync.Mutex
	seen map[metadata.DatasetID]*covered // under mu
}

// covered is what lies over a dataset. All of it is under covers.mu.
type covered struct {
	ds      cluster.Dataset
	sum     manifest.Summary
	mounts  bool     // something is being mounted
	covered bool     // a cover was tried
	viewed  bool     // a view was tried
	view    bool     // a view is there
	stale   bool     // the view that is being made is not to stay
	showing *helping // of the view
	waiting *helping // of the cover, which may be listed
	served  []*mount.Cover
}

func newCovers(n *node, by coverer) *covers {
	c := &covers{node: n, by: by, memory: mounts.Memory(), seen: make(map[metadata.DatasetID]*covered)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// covererOf is nil where nobody may mount.
func (n *node) covererOf(start daemon.Start) coverer {
	switch keeper, ok := n.backer.(*daemon.Backing); {
	case ok:
		return byKeeper{keeper}
	case start.Fuse, os.Geteuid() != 0:
		return nil
	}
	return byUs{n.job}
}

// coverable reports whether a dataset is better off with a cover: one of small
// files that fits in half of the memory, so that the kernel can have all of it.
// What it has is read twice as fast as by passthrough, and what it has not, of
// files that are whole on this node, half as fast. So where files are read over
// and over from the drive, passthrough is better.
func coverable(sum manifest.Summary, memory int64) bool {
	return viewable(sum) && sum.Bytes <= memory/2
}

// viewable reports whether a dataset is better off with a kernel view: one of small
// files, whatever it has in all. Of large ones most are striped, and those are read
// better by the mount of all.
func viewable(sum manifest.Summary) bool {
	return sum.Files > 0 && sum.Bytes/sum.Files <= coverMean
}

// see is told of every dataset that can be read, more than once.
func (c *covers) see(ds cluster.Dataset, sum manifest.Summary) {
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

// next mounts over a dataset what it is time for: first the cover, which the view
// then lies upon. mu is held.
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
			_ = x.waiting.near.CloseWrite() // a view knows all names
		}
	default:
		return
	}
	x.mounts = true
	viewed, ds, sum := x.viewed, x.ds, x.sum
	c.wg.Go(func() {
		if c.done(x, do(ds, sum), viewed) {
			c.again(x)
		}
	})
}

// done takes note of what was mounted, if it was, and reports whether it is stale.
func (c *covers) done(x *covered, m *mount.Cover, viewed bool) (stale bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x.mounts = false
	if m != nil {
		x.served = append(x.served, m)
		x.view = viewed
	}
	stale, x.stale = x.stale && x.view, false
	if stale {
		x.view = false
		return true
	}
	c.next(x)
	return false
}

// cover is nil if there is none. It waits until the cover is shown, so that a view
// comes after it.
func (c *covers) cover(ds cluster.Dataset, sum manifest.Summary) *mount.Cover {
	log := c.node.log.WithField("dataset", ds.Name)
	h, m, err := c.begin(ds, c.by.cover, func(dev *os.File) (*mount.Cover, error) {
		return c.node.mount.Cover(dev, metadata.SealedIno(ds.ID, metadata.DirPart, 0), c.node.daemon.Forecast(ds.ID))
	})
	if err == nil {
		_ = mounts.TellDeep(h.near, sum.Depth > mounts.MaxRing) // placed says why not
		if err = h.placed(m); err != nil {
			h.close()
		}
	}
	if err != nil {
		log.WithError(err).Info("the dataset is read through the mount of all")
		return nil
	}
	if err := h.shown(); err != nil {
		h.close()
		log.WithError(err).Info("the dataset has a connection of its own that is not shown")
		return m
	}
	log.Info("the dataset has a connection of its own")
	if sum.Names() > mounts.MostNames(c.memory) {
		h.close()
		return m
	}
	c.mu.Lock()
	c.seen[ds.ID].waiting = h
	c.mu.Unlock()
	c.wg.Go(func() {
		defer h.close()
		c.visit(ds, h, uint32(sum.Names()))
	})
	return m
}

// visit has the helper of a cover list it, if the dataset is on its way for a while: until it is here, who opens a
// file for the first time waits for its bytes, and need not wait for its name, too.
func (c *covers) visit(ds cluster.Dataset, h *helping, names uint32) {
	if !h.silent(visitAfter) {
		return // it has ended, or is to
	}
	c.mu.Lock()
	whole := c.seen[ds.ID].ds.Phase == cluster.Sealed
	c.mu.Unlock()
	if whole {
		return
	}
	began := time.Now()
	if err := errors.Join(mounts.AskVisit(h.near, names), mounts.AwaitEnd(h.said)); err == nil {
		c.node.log.WithFields(logrus.Fields{"dataset": ds.Name, "names": names, "took": time.Since(began).Round(time.Millisecond)}).
			Debug("the kernel knows the names")
	}
}

// stop ends the making of covers and views.
func (c *covers) stop() {
	c.mu.Lock()
	c.cancel() // under mu: then nothing more is begun
	c.mu.Unlock()
	c.wg.Wait()
}

// wait waits for the covers after they were taken away, but not long for those
// who use them.
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
				c.node.log.Warn("a dataset was in use and is detached")
				return
			}
		}
	}
}
