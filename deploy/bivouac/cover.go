package main

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/mounts"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

const (
	// maxCovers is how many datasets have a cover at a time, each of which takes
	// mount.CoverMemory.
	maxCovers = 4
	// coverMean is the mean size of a file, in bytes, up to which a dataset gets a
	// cover: what one request brings.
	coverMean = 512 << 10
	// coverEnd is how long covers that are in use are waited for at the end.
	coverEnd = time.Second
)

// coverer mounts a cover over a dataset of this node. end waits for what goes on
// after it has returned.
type coverer func(ctx context.Context, name string) (dev *os.File, end func(), err error)

// covers gives the datasets of small files connections of their own. They only
// make reading faster, so that what goes wrong with one is logged and no more.
type covers struct {
	node   *node
	by     coverer
	ctx    context.Context
	cancel context.CancelFunc
	memory int64          // of this machine, in bytes
	wg     sync.WaitGroup // of covers that are being made

	mu   sync.Mutex
	seen map[metadata.DatasetID]*mount.Cover // under mu; nil is one that is being made, or could not be
}

func newCovers(n *node, by coverer) *covers {
	c := &covers{node: n, by: by, memory: memoryOf(), seen: make(map[metadata.DatasetID]*mount.Cover)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// covererOf is nil where nobody may mount.
func (n *node) covererOf(start daemon.Start) coverer {
	switch keeper, ok := n.backer.(*daemon.Backing); {
	case ok:
		return func(_ context.Context, name string) (*os.File, func(), error) {
			dev, err := keeper.Cover(name)
			return dev, func() {}, err
		}
	case start.Fuse, os.Geteuid() != 0:
		return nil
	}
	return func(ctx context.Context, name string) (*os.File, func(), error) {
		c := mounts.Cover{Base: n.job.Dirs.Mount, Name: name, UID: n.job.UID, GID: n.job.GID}
		return c.Mount(ctx, "/proc/self/exe")
	}
}

// coverable reports whether a dataset is better off with a cover: one of small
// files that fits in half of the memory, so that the kernel can have all of it.
// What it has is read twice as fast as by passthrough, and what it has not, of
// files that are whole on this node, half as fast. So where files are read over
// and over from the drive, passthrough is better.
func coverable(sum manifest.Summary, memory int64) bool {
	return sum.Files > 0 && sum.Bytes/sum.Files <= coverMean && sum.Bytes <= memory/2
}

// memoryOf is the memory of this machine; 0 if it does not say.
func memoryOf() int64 {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return 0
	}
	return int64(i.Totalram) * int64(i.Unit)
}

// see is told of every dataset that can be read, more than once.
func (c *covers) see(ds cluster.Dataset, sum manifest.Summary) {
	if c.by == nil || !coverable(sum, c.memory) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.seen[ds.ID]; ok || len(c.seen) >= maxCovers || c.ctx.Err() != nil {
		return
	}
	c.seen[ds.ID] = nil
	c.wg.Go(func() { c.cover(ds) })
}

func (c *covers) cover(ds cluster.Dataset) {
	log := c.node.log.WithField("dataset", ds.Name)
	dev, end, err := c.by(c.ctx, ds.Name)
	if err != nil {
		log.WithError(err).Info("the dataset is read through the mount of all")
		return
	}
	defer end()
	defer dev.Close()
	m, err := c.node.mount.Cover(dev, metadata.SealedIno(ds.ID, metadata.DirPart, 0))
	if err != nil {
		log.WithError(err).Warn("the dataset is read through the mount of all")
		_ = dev.Close() // then who mounted takes it away
		return
	}
	go m.Serve() // ends with the mount, as that of all does
	c.mu.Lock()
	c.seen[ds.ID] = m
	c.mu.Unlock()
	log.Info("the dataset has a connection of its own")
}

// stop ends the making of covers.
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
	for _, m := range c.seen {
		if m == nil {
			continue
		}
		select {
		case <-m.Served():
		case <-t.C:
			c.node.log.Warn("a dataset was in use and is detached")
			return
		}
	}
}
