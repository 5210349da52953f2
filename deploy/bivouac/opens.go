package main

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/daemon/training"
	"github.com/bivouacfs/bivouac/deploy/mounts"
	"github.com/bivouacfs/bivouac/fsclient/prefetch"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// openEvery is the interval at which the opens of a view are read. A wake-up for each open would slow opens down.
const openEvery = 50 * time.Millisecond

// missing is the message for opens that cannot be observed.
const missing = "reads through the kernel view of the dataset are missing from status, report and metrics"

// opens observes opens in kernel views. They are the only sign of reads that the kernel serves alone: such reads are
// counted, and in a job of one node they give the prefetch the positions of the ranks.
type opens struct {
	node *node

	mu   sync.Mutex
	all  map[metadata.DatasetID]*kernelReads       // guarded by mu
	ends map[metadata.DatasetID]context.CancelFunc // guarded by mu; of the watched datasets
}

func newOpens(n *node) *opens {
	return &opens{node: n, all: make(map[metadata.DatasetID]*kernelReads), ends: make(map[metadata.DatasetID]context.CancelFunc)}
}

// addTo adds the reads that the kernel has served alone.
func (o *opens) addTo(reads map[metadata.DatasetID]training.Reads) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, k := range o.all {
		r := reads[id]
		r.Places.Add(k.served, 1)
		reads[id] = r
	}
}

// watch starts to count the opens in the view of a dataset, until end is called or ctx ends. It owns root, the root of
// the view; nil if there is none.
func (o *opens) watch(ctx context.Context, wg *sync.WaitGroup, ds cluster.Dataset, root *os.File) {
	if root == nil {
		return
	}
	log := o.node.log.WithField("dataset", ds.Name)
	dirs, inos, err := o.dirs(ds)
	var w *mounts.Opens
	if err == nil {
		w, err = mounts.WatchOpens(root, dirs, time.Now())
	} else {
		_ = root.Close() // it was only a handle
	}
	if err != nil {
		log.WithError(err).Warn(missing)
		return
	}
	ctx, end := context.WithCancel(ctx)
	o.begin(ds.ID, end)
	wg.Go(func() {
		defer end()
		defer w.Close()
		if err := o.run(ctx, w, ds.ID, inos); err != nil {
			log.WithError(err).Warn(missing)
		}
	})
}

// end ends the watch of a dataset, which would keep its view from being removed.
func (o *opens) end(ds metadata.DatasetID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if end := o.ends[ds]; end != nil {
		end()
		delete(o.ends, ds)
	}
}

// run reads the opens until ctx ends.
func (o *opens) run(ctx context.Context, w *mounts.Opens, ds metadata.DatasetID, dirs []metadata.Ino) error {
	t := time.NewTicker(openEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-t.C:
			if err := o.look(ctx, w, ds, dirs, now); err != nil {
				return err
			}
		}
	}
}

// dirs returns the directories that contain files, as paths in a view and as inodes.
func (o *opens) dirs(ds cluster.Dataset) (paths []string, inos []metadata.Ino, err error) {
	err = tableFiles{o.node.daemon, ds}.Files(func(dir string, number uint32, _ string, _ metadata.Attr) bool {
		if ino := metadata.SealedIno(ds.ID, metadata.DirPart, number); len(inos) == 0 || inos[len(inos)-1] != ino {
			paths, inos = append(paths, dir), append(inos, ino)
		}
		return true
	})
	return paths, inos, err
}

// begin excludes the reads that the daemon has served before. An earlier view of the dataset may have left counts.
func (o *opens) begin(ds metadata.DatasetID, end context.CancelFunc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ends[ds] = end
	if o.all[ds] == nil {
		o.all[ds] = new(kernelReads)
	}
	o.all[ds].begin(o.answered(ds))
}

// answered returns the reads of this node's files that the daemon has served.
func (o *opens) answered(ds metadata.DatasetID) training.Places {
	p := reads(o.node.client.DatasetReads(), nil)[ds].Places
	return training.Places{Local: p.Local, Replica: p.Replica}
}

// look counts the opens since the last call.
func (o *opens) look(ctx context.Context, w *mounts.Opens, ds metadata.DatasetID, dirs []metadata.Ino, now time.Time) error {
	store, _ := o.node.daemon.Table(ds)
	table, ok := store.(*manifest.Table)
	if !ok {
		return nil // the dataset is being removed
	}
	self := o.node.job.Self
	var ahead *prefetch.Engine
	if len(o.node.job.Hosts) == 1 { // else the daemon sees positions earlier, and opens would be out of order
		ahead = o.node.ahead.engine(ds)
	}
	var seen training.Places
	over, missed, err := w.Read(now, func(dir int, name string) {
		e, err := table.Lookup(ctx, dirs[dir], name)
		if err != nil || e.Attr == nil || !slices.Contains(o.node.client.Where(e.Attr), self) {
			return // the daemon sees its reads
		}
		to := &seen.Local
		if e.Attr.Layout.Node != self {
			to = &seen.Replica
		}
		to.Samples, to.Bytes = to.Samples+1, to.Bytes+e.Attr.Size
		if ahead != nil {
			ahead.Opened(e.Ino)
		}
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.all[ds]
	k.take(seen, o.answered(ds))
	if over {
		k.extrapolate(missed)
	}
	return err
}

// kernelReads counts opens of this node's files whose reads no daemon has served.
type kernelReads struct {
	served training.Places
	recent training.Places // the part of served since the watches were set
	daemon training.Places // reads by the daemon so far
	owed   training.Places // the recent ones whose opens were not seen yet
}

func (k *kernelReads) begin(daemon training.Places) {
	k.daemon, k.recent, k.owed = daemon, training.Places{}, training.Places{}
}

// take adds opens. The daemon serves the reads of a file that was opened before its bytes were here.
func (k *kernelReads) take(seen, daemon training.Places) {
	lately := daemon
	lately.Add(k.daemon, -1)
	k.daemon = daemon
	k.owed.Add(lately, 1)
	alone, owed := seen, k.owed
	alone.Add(owed, -1)
	owed.Add(seen, -1)
	for i, c := range alone.Named() {
		c.Samples, c.Bytes = max(c.Samples, 0), max(c.Bytes, 0)
		o, l := owed.Named()[i], lately.Named()[i]
		o.Samples, o.Bytes = min(max(o.Samples, 0), l.Samples), min(max(o.Bytes, 0), l.Bytes)
	}
	k.owed = owed
	k.served.Add(alone, 1)
	k.recent.Add(alone, 1)
}

// extrapolate adds the estimated opens that were not watched: missed for each of the recent ones.
func (k *kernelReads) extrapolate(missed float64) {
	for _, c := range k.recent.Named() {
		c.Samples, c.Bytes = int64(float64(c.Samples)*missed), int64(float64(c.Bytes)*missed)
	}
	k.served.Add(k.recent, 1)
	k.recent = training.Places{}
}
