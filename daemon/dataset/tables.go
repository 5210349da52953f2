package dataset

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// table is a dataset whose metadata this node serves.
type table struct {
	digest  string
	table   *manifest.Table
	summary manifest.Summary
}

// KV stores a manifest.
type KV interface {
	manifest.KV
	Drop() error
}

// Tables holds the manifests that this node has loaded.
type Tables struct {
	n     node.Node
	files *Files
	open  func(metadata.DatasetID) KV

	mu     sync.Mutex
	have   map[metadata.DatasetID]table  // guarded by mu
	errors map[metadata.DatasetID]string // guarded by mu; why a manifest cannot be loaded
}

// NewTables returns Tables without a manifest.
func NewTables(n node.Node, files *Files, open func(metadata.DatasetID) KV) *Tables {
	return &Tables{n: n, files: files, open: open, have: make(map[metadata.DatasetID]table), errors: make(map[metadata.DatasetID]string)}
}

// Report returns the digests of the loaded manifests, and the errors of those that cannot be loaded.
func (t *Tables) Report() (have, errors map[metadata.DatasetID]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have = make(map[metadata.DatasetID]string, len(t.have))
	for id, x := range t.have {
		have[id] = x.digest
	}
	return have, maps.Clone(t.errors)
}

func (t *Tables) get(id metadata.DatasetID) (table, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x, ok := t.have[id]
	return x, ok
}

// Table returns a store that answers metadata calls for a dataset without the network.
func (t *Tables) Table(id metadata.DatasetID) (metadata.Store, bool) {
	x, ok := t.get(id)
	if !ok {
		return nil, false
	}
	return x.table, true
}

// Summary returns the summary of the manifest of ds, if the manifest is here.
func (t *Tables) Summary(ds cluster.Dataset) (sum manifest.Summary, current, ok bool) {
	x, ok := t.get(ds.ID)
	return x.summary, ok && x.digest == ds.Digest, ok
}

// Readable returns the datasets whose tree can be read on this node, that is, those whose manifest is here. All nodes
// have the manifest before the dataset is published.
func (t *Tables) Readable() []cluster.Dataset {
	var all []cluster.Dataset
	for _, ds := range t.n.View().Datasets {
		if ds.Phase == cluster.Staging || ds.Phase.Ended() {
			continue
		}
		if x, ok := t.get(ds.ID); ok && x.digest == ds.Digest {
			all = append(all, ds)
		}
	}
	return all
}

// set stores a loaded table, or the error of one that cannot be loaded. Temporary errors are not kept.
func (t *Tables) set(ctx context.Context, id metadata.DatasetID, x table, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.errors, id)
	switch {
	case err == nil:
		t.have[id] = x
	case !node.Unreachable(err) && ctx.Err() == nil:
		t.errors[id] = node.ErrorText(err)
	}
}

// ingestedFile marks a manifest that was ingested completely into the KV store.
const ingestedFile = Manifest + ".ingested"

// load loads the table of ds: from the KV store if an earlier run of this daemon has ingested the manifest, otherwise
// from the manifest, which fetch fetches.
func (t *Tables) load(ctx context.Context, ds cluster.Dataset, fetch func() error) (table, error) {
	kv := t.open(ds.ID)
	x := table{digest: ds.Digest}
	mark := t.files.Path(ds.ID, ingestedFile)
	if b, err := os.ReadFile(mark); err == nil && strings.TrimSpace(string(b)) == ds.Digest {
		if x.table, err = manifest.Open(kv, ds.ID); err == nil {
			x.summary = x.table.Summary()
			return x, nil
		}
		t.n.Log().WithError(err).WithField("dataset", ds.Name).Warn("stored manifest is damaged: fetching it again")
	}
	if err := fetch(); err != nil {
		return x, err
	}
	sum, err := ingest(ctx, kv, t.files.Path(ds.ID, Manifest), t.files.Scratch(ds.ID))
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
	return x, os.WriteFile(mark, []byte(ds.Digest), 0o600)
}

func ingest(ctx context.Context, kv manifest.KV, path string, scratch *manifest.Scratch) (manifest.Summary, error) {
	f, err := os.Open(path)
	if err != nil {
		return manifest.Summary{}, err
	}
	defer f.Close() // read only
	return manifest.Ingest(ctx, kv, manifest.NewReader(bufio.NewReaderSize(f, 1<<20)), scratch)
}

// drop removes a dataset that failed.
func (t *Tables) drop(id metadata.DatasetID) error {
	t.mu.Lock()
	delete(t.have, id)
	delete(t.errors, id)
	t.mu.Unlock()
	return t.open(id).Drop()
}
