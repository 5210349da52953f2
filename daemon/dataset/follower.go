package dataset

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// Stager is the interface of package ingest that the follower uses.
type Stager interface {
	// Supersede ends attempts of this node's coordinator that are older than ds, or all of them if ds has ended.
	Supersede(ds cluster.Dataset)
	// Adopt takes over a stage-in that this node coordinates but does not run. It reports whether nothing is left to
	// do.
	Adopt(ctx context.Context, ds cluster.Dataset) bool
	// Discard drops the boundaries received for a dataset that is no longer staged.
	Discard(id metadata.DatasetID)
	// TakeStandby reports whether this node holds the manifest of ds as a standby. It removes an outdated one.
	TakeStandby(ds cluster.Dataset) (bool, error)
	// Published removes the files of a stage-in that are no longer needed.
	Published(id metadata.DatasetID)
}

// TreeFunc is called, possibly more than once, for a dataset whose tree can be read on this node, and for a dataset
// that has ended before its data is removed. It must not block.
type TreeFunc func(ds cluster.Dataset, sum manifest.Summary)

// observer holds the arguments of SetTree.
type observer struct {
	tree   TreeFunc
	hidden func(cluster.Dataset) bool
}

// Follower carries out what the registry asks of every node for each dataset.
type Follower struct {
	n      node.Node
	tasks  *tasks.Runner
	retry  time.Duration
	files  *Files
	fence  *Fence
	tables *Tables
	fills  *Fills
	stager Stager
	tree   atomic.Pointer[observer]
}

// SetStager sets the Stager. It must be called before Run.
func (f *Follower) SetStager(s Stager) { f.stager = s }

// SetTree has t called for all datasets, including present and ended ones. A dataset stays in the phase Publishing
// while it is hidden from the programs of this node.
func (f *Follower) SetTree(t TreeFunc, hidden func(cluster.Dataset) bool) {
	f.tree.Store(&observer{t, hidden})
	for _, ds := range f.n.View().Datasets {
		if ds.Phase.Ended() { // discard may have run before
			t(ds, manifest.Summary{})
		}
	}
	f.announce()
}

// Hidden returns the datasets whose manifest is here but which programs of this node do not see yet.
func (f *Follower) Hidden() (all []metadata.DatasetID) {
	t := f.tree.Load()
	if t == nil {
		return nil
	}
	for _, ds := range f.tables.Readable() {
		if t.hidden(ds) {
			all = append(all, ds.ID)
		}
	}
	return all
}

func (f *Follower) announce() {
	t := f.tree.Load()
	if t == nil {
		return
	}
	for _, ds := range f.tables.Readable() {
		if x, ok := f.tables.get(ds.ID); ok {
			t.tree(ds, x.summary)
		}
	}
}

// Run follows the registry until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	node.Follow(ctx, f.n, f.retry, f.retry, func(v cluster.View) bool {
		done := true
		for _, ds := range v.Datasets {
			done = f.follow(ctx, ds) && done
		}
		f.announce()
		return done
	})
}

// follow does what the phase of ds asks of this node, and reports whether nothing is left to do.
func (f *Follower) follow(ctx context.Context, ds cluster.Dataset) bool {
	f.stager.Supersede(ds)
	switch ds.Phase {
	case cluster.Staging:
		return ds.Coordinator != f.n.Self() || f.stager.Adopt(ctx, ds)
	case cluster.Failed, cluster.Removed:
		f.discard(ds)
		return true
	}
	x, ok := f.tables.get(ds.ID)
	if !ok || x.digest != ds.Digest {
		f.tasks.CancelGroup(ds.ID) // ends a part that another node has read again
		f.stager.Discard(ds.ID)
		if f.load(ctx, ds) != nil {
			return false
		}
		x, _ = f.tables.get(ds.ID)
	}
	if err := f.fills.Begin(ds, x.table); err != nil {
		f.n.Log().WithError(err).WithField("dataset", ds.Name).Warn("fetch of the dataset's files not started: retrying")
		return false
	}
	return true
}

func (f *Follower) load(ctx context.Context, ds cluster.Dataset) error {
	x, err := f.tables.load(ctx, ds, func() error { return f.fetch(ctx, ds) })
	f.tables.set(ctx, ds.ID, x, err)
	log := f.n.Log().WithField("dataset", ds.Name)
	if err != nil {
		log.WithError(err).Warn("manifest not loaded: retrying")
		return err
	}
	f.stager.Published(ds.ID)
	log.WithField("files", ds.Files).Info("manifest loaded")
	f.n.Nudge()
	return nil
}

// fetch fetches the manifest and the files that a fill needs, unless this node is a standby that has both.
func (f *Follower) fetch(ctx context.Context, ds cluster.Dataset) error {
	if has, err := f.stager.TakeStandby(ds); has || err != nil {
		return err
	}
	if ds.Fill {
		for _, name := range []string{Origins, Order} {
			if _, err := os.Stat(f.files.Path(ds.ID, name)); err == nil {
				continue
			}
			if err := f.files.FetchAny(ctx, ds, name); err != nil {
				return err
			}
		}
	}
	return f.files.FetchAny(ctx, ds, Manifest)
}

// discard stops this node's work on a dataset that has ended and removes its data. It does not wait for the
// coordinator, which may be down.
func (f *Follower) discard(ds cluster.Dataset) {
	if !f.fence.ClaimRemoval(ds.ID) {
		return
	}
	if t := f.tree.Load(); t != nil {
		t.tree(ds, manifest.Summary{})
	}
	f.n.Spawn(func(ctx context.Context) {
		if f.StopTasks(ctx, ds.ID) == nil {
			f.Drop(ds.ID)
		}
	})
}

// StopTasks ends this node's parts of a dataset that failed, and waits for them.
func (f *Follower) StopTasks(ctx context.Context, id metadata.DatasetID) error {
	f.stager.Discard(id)
	f.fence.End(id)
	return f.tasks.CloseGroup(ctx, id)
}

// Drop removes this node's data of a dataset that failed.
func (f *Follower) Drop(id metadata.DatasetID) {
	f.fills.End(id)
	f.fills.replicas.End(id)
	log := f.n.Log().WithField("dataset", id)
	n, err := f.fence.RemoveObjects(id)
	if err != nil {
		log.WithError(err).Warn("objects of a failed dataset not removed: they take space until the job ends")
	}
	if err := os.RemoveAll(f.files.Dir(id)); err != nil {
		log.WithError(err).Warn("staging directory of a failed dataset not removed: it takes space until the job ends")
	}
	if err := f.tables.drop(id); err != nil {
		log.WithError(err).Warn("manifest of a failed dataset not removed: it takes space until the job ends")
	}
	log.WithField("objects", n).Debug("failed dataset removed")
}
