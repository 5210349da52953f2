package daemon

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// dataset is a sealed dataset that this node can answer for.
type dataset struct {
	digest  string
	table   *manifest.Table
	summary manifest.Summary
}

// sealed is the manifests that this node has.
type sealed struct {
	mu      sync.Mutex // sealedMu of the package comment
	have    map[metadata.DatasetID]dataset
	trouble map[metadata.DatasetID]string
}

func (s *sealed) init() {
	s.have = make(map[metadata.DatasetID]dataset)
	s.trouble = make(map[metadata.DatasetID]string)
}

func (s *sealed) report() (have, trouble map[metadata.DatasetID]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have = make(map[metadata.DatasetID]string, len(s.have))
	for id, x := range s.have {
		have[id] = x.digest
	}
	trouble = make(map[metadata.DatasetID]string, len(s.trouble))
	for id, t := range s.trouble {
		trouble[id] = t
	}
	return have, trouble
}

func (s *sealed) get(id metadata.DatasetID) (dataset, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.have[id]
	return x, ok
}

// Table answers metadata of a sealed dataset without the network.
func (d *Daemon) Table(id metadata.DatasetID) (metadata.Store, bool) {
	x, ok := d.table.get(id)
	if !ok {
		return nil, false
	}
	return x.table, true
}

// Datasets is the datasets whose tree can be read on this node: those whose
// manifest is here. All nodes have it before any is told that it is sealed.
func (d *Daemon) Datasets() []cluster.Dataset {
	var all []cluster.Dataset
	for _, ds := range d.View().Datasets {
		if ds.Phase == cluster.Staging || ds.Phase == cluster.Failed {
			continue
		}
		if x, ok := d.table.get(ds.ID); ok && x.digest == ds.Digest {
			all = append(all, ds)
		}
	}
	return all
}

// TreeFunc is told of a dataset whose tree can be read on this node, more than
// once. It must not wait.
type TreeFunc func(ds cluster.Dataset, sum manifest.Summary)

// SetTree gives the daemon somebody to tell of datasets.
func (d *Daemon) SetTree(f TreeFunc) {
	d.tree.Store(&f)
	d.tellTrees() // of those that were there before
}

func (d *Daemon) tellTrees() {
	f := d.tree.Load()
	if f == nil {
		return
	}
	for _, ds := range d.Datasets() {
		if x, ok := d.table.get(ds.ID); ok {
			(*f)(ds, x.summary)
		}
	}
}

// ingestLoop does what the registry asks of every node for each dataset.
func (d *Daemon) ingestLoop(ctx context.Context) {
	for {
		v, changed := d.Watch()
		again := false
		for _, ds := range v.Datasets {
			again = !d.follow(ctx, ds) || again
		}
		d.tellTrees()
		var retry <-chan time.Time
		if again {
			retry = time.After(4 * d.cfg.Timing.Report)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retry:
		}
	}
}

// follow does what the phase of ds asks of this node, and reports whether there
// is nothing left to do.
func (d *Daemon) follow(ctx context.Context, ds cluster.Dataset) bool {
	d.outdated(ds)
	switch ds.Phase {
	case cluster.Staging:
		return ds.Coordinator != d.job.Self || d.adopt(ctx, ds)
	case cluster.Failed:
		d.discard(ds.ID)
		return true
	}
	x, ok := d.table.get(ds.ID)
	if !ok || x.digest != ds.Digest {
		d.tasks.CancelGroup(ds.ID) // a share that was begun again elsewhere
		d.stage.forgetSeams(ds.ID)
		if d.ingest(ctx, ds) != nil {
			return false
		}
		x, _ = d.table.get(ds.ID)
	}
	if err := d.beginFill(ds, x.table); err != nil {
		d.log.WithError(err).Warn("a dataset is not filled")
		return false
	}
	return true
}

// discard ends what this node does for a dataset that has failed, and removes
// what it has of it. Who led the stage-in may be gone, so nobody waits for it
// to say so.
func (d *Daemon) discard(ds metadata.DatasetID) {
	if !d.stage.drop(ds) {
		return
	}
	d.Spawn(func(ctx context.Context) {
		if d.stopShares(ctx, ds) == nil {
			d.dropDataset(ds)
		}
	})
}

func (d *Daemon) ingest(ctx context.Context, ds cluster.Dataset) error {
	x, err := d.load(ctx, ds)
	d.table.mu.Lock()
	delete(d.table.trouble, ds.ID)
	switch {
	case err == nil:
		d.table.have[ds.ID] = x
	case !node.Unreachable(err) && ctx.Err() == nil:
		d.table.trouble[ds.ID] = node.ErrorText(err)
	}
	d.table.mu.Unlock()
	if err != nil {
		d.log.WithError(err).WithField("dataset", ds.Name).Warn("manifest not ingested")
		return err
	}
	d.log.WithFields(map[string]any{"dataset": ds.Name, "files": ds.Files}).Info("manifest ingested")
	d.Nudge()
	return nil
}

// load makes the table of ds, from the store if an earlier start of this
// daemon had ingested it already.
func (d *Daemon) load(ctx context.Context, ds cluster.Dataset) (dataset, error) {
	d.stage.settled()
	path := filepath.Join(d.stageDir(ds.ID), manifestFile)
	mark := path + ".ingested"
	kv := d.meta.Table(ds.ID)
	x := dataset{digest: ds.Digest}
	if b, err := os.ReadFile(mark); err == nil && strings.TrimSpace(string(b)) == ds.Digest {
		if x.table, err = manifest.Open(kv, ds.ID); err == nil {
			x.summary = x.table.Summary()
			return x, nil
		}
		d.log.WithError(err).Warn("ingested manifest is not usable, ingesting it again")
	}
	if err := d.fetchManifest(ctx, ds, path); err != nil {
		return x, err
	}
	sum, err := ingestFile(ctx, kv, path, d.scratch(ds.ID))
	if err != nil {
		return x, err
	}
	if sum.Digest != ds.Digest {
		_ = kv.Drop()
		return x, fmt.Errorf("manifest of %s: digest is %s, want %s", ds.Name, sum.Digest, ds.Digest)
	}
	x.summary = sum
	if x.table, err = manifest.Open(kv, ds.ID); err != nil {
		return x, err
	}
	if err := os.WriteFile(mark, []byte(ds.Digest), 0o600); err != nil {
		return x, err
	}
	d.dropShares(ds.ID)
	return x, nil
}

// dropShares removes the lists and records of the shares of a dataset whose
// manifest has been made of them.
func (d *Daemon) dropShares(id metadata.DatasetID) {
	for _, pattern := range []string{"part-*", "records-*", "skips-*", "read-*", "points-*", "mark-*", "turn-*", passFile + "*", heirFile} {
		files, _ := filepath.Glob(filepath.Join(d.stageDir(id), pattern)) // the pattern is good
		for _, f := range files {
			if err := os.RemoveAll(f); err != nil {
				d.log.WithError(err).Debug("left over from staging")
			}
		}
	}
}

// fetchManifest brings the manifest, unless this node is an heir of it.
func (d *Daemon) fetchManifest(ctx context.Context, ds cluster.Dataset, path string) error {
	if has := d.inherited(ds.ID); has != "" && ds.Coordinator != d.job.Self {
		if has == ds.Digest {
			return nil
		}
		if err := d.disinherit(ds.ID); err != nil {
			return err
		}
	}
	if err := d.fetchOrigins(ctx, ds); err != nil {
		return err
	}
	return d.fetchFromAny(ctx, ds, manifestFile, path)
}

// fetchFromAny brings a file of the staging of ds from the node that led it, or
// else from any other. If it is not to be had, the error says whether one who may
// have it cannot be asked.
func (d *Daemon) fetchFromAny(ctx context.Context, ds cluster.Dataset, name, path string) error {
	q := blobReq{Dataset: ds.ID, Name: name}
	var err error
	if ds.Coordinator == d.job.Self {
		_, err = os.Stat(path) // it was made here; an empty store has it from the others
	} else {
		err = d.fetch(ctx, ds.Coordinator, q, path)
	}
	if err == nil {
		return nil
	}
	for _, id := range d.View().Map.Up() {
		if id == ds.Coordinator || id == d.job.Self {
			continue
		}
		e := d.fetch(ctx, id, q, path)
		if e == nil {
			return nil
		}
		if node.Unreachable(e) {
			err = e
		}
	}
	return err
}

// scratch is room to sort the records of a dataset in.
func (d *Daemon) scratch(id metadata.DatasetID) *manifest.Scratch {
	return &manifest.Scratch{Dir: d.stageDir(id)}
}

func ingestFile(ctx context.Context, kv manifest.KV, path string, scratch *manifest.Scratch) (manifest.Summary, error) {
	f, err := os.Open(path)
	if err != nil {
		return manifest.Summary{}, err
	}
	defer f.Close()
	return manifest.Ingest(ctx, kv, manifest.NewReader(bufio.NewReaderSize(f, 1<<20)), scratch)
}

// dropDataset removes what this node holds of a dataset that failed.
func (d *Daemon) dropDataset(id metadata.DatasetID) {
	d.endFill(id)
	n, err := d.data.RemoveAll(func(ino metadata.Ino) bool { return ino.Sealed() && ino.Dataset() == id })
	if err != nil {
		d.log.WithError(err).Warn("objects of a failed dataset remain")
	}
	if err := os.RemoveAll(d.stageDir(id)); err != nil {
		d.log.WithError(err).Warn("records of a failed dataset remain")
	}
	d.table.mu.Lock()
	delete(d.table.have, id)
	delete(d.table.trouble, id)
	d.table.mu.Unlock()
	if err := d.meta.Table(id).Drop(); err != nil {
		d.log.WithError(err).Warn("manifest of a failed dataset remains")
	}
	d.log.WithFields(map[string]any{"dataset": id, "objects": n}).Debug("dropped")
}
