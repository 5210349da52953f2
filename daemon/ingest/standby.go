package ingest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// standbys is how many other nodes keep the state of a single pass, and the manifest until it is published.
const standbys = 2

// A manifest of up to smallManifest bytes is sent to all nodes of a job of up to smallJob nodes before it is published.
const (
	smallManifest = 4 << 20
	smallJob      = 16
)

// replicateRequest has a node fetch files of a stage-in from its coordinator.
type replicateRequest struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Attempt int                `json:"attempt"`
	Names   []string           `json:"names"`
	Digest  string             `json:"digest,omitempty"` // digest of the manifest, if Names includes it
}

// replicate saves the state and replicates it to the standbys, replacing lost ones. It is no error if there is no other
// node.
func (c *Coordinator) replicate(ctx context.Context) error {
	c.saving <- struct{}{}
	defer func() { <-c.saving }()
	p, err := c.saveState()
	if err != nil {
		return err
	}
	c.standby = c.replicateTo(ctx, replicateRequest{Dataset: c.ds.ID, Attempt: c.ds.Attempt, Names: append(p.files(), dataset.State)})
	return nil
}

// replicateState sends only the state to the current standbys.
func (c *Coordinator) replicateState(ctx context.Context) error {
	c.saving <- struct{}{}
	defer func() { <-c.saving }()
	if _, err := c.saveState(); err != nil {
		return err
	}
	q := replicateRequest{Dataset: c.ds.ID, Attempt: c.ds.Attempt, Names: []string{dataset.State}}
	var errs []error
	for _, id := range c.standby {
		errs = append(errs, c.s.cfg.Node.Call(ctx, id, wire.OpStandbyReplicate, q, nil))
	}
	return errors.Join(errs...)
}

// handOver sends the manifest, and the other files that a fill needs, to standbys, so that the dataset can be published
// without this node.
func (c *Coordinator) handOver(ctx context.Context) {
	c.saving <- struct{}{}
	defer func() { <-c.saving }()
	names := []string{dataset.Manifest}
	if c.ds.Fill {
		names = append(names, dataset.Origins, dataset.Order)
	}
	if c.req.OnError == stagein.OnErrorSkip {
		names = append(names, dataset.AllSkips)
	}
	q := replicateRequest{Dataset: c.ds.ID, Attempt: c.ds.Attempt, Names: names, Digest: c.ds.Digest}
	c.spread(ctx, q, c.replicateTo(ctx, q))
}

// replicateTo sends q to nodes until enough of them have carried it out, and returns these.
func (c *Coordinator) replicateTo(ctx context.Context, q replicateRequest) (all []metadata.NodeID) {
	for _, id := range c.candidates() {
		if len(all) == standbys || ctx.Err() != nil {
			break
		}
		if err := c.replicateOne(ctx, id, q); err != nil {
			c.log().WithError(err).WithField("host", c.s.cfg.Job.Hosts[id]).Warn("standby not updated: another node is tried; without one, the stage-in fails if this node does")
			continue
		}
		all = append(all, id)
	}
	return all
}

func (c *Coordinator) replicateOne(ctx context.Context, id metadata.NodeID, q replicateRequest) error {
	n := c.s.cfg.Node
	return n.Insist(ctx, id, c.s.cfg.Patience, tasks.MayLag, func() error { return n.Call(ctx, id, wire.OpStandbyReplicate, q, nil) })
}

// spread sends a small manifest to the nodes of a small job that do not have it yet, so that all start to fetch files
// at the same time: a late node would delay readers of the files that it owns. The tree is not readable before all
// nodes have the manifest anyway.
func (c *Coordinator) spread(ctx context.Context, q replicateRequest, has []metadata.NodeID) {
	up := c.s.cfg.Node.View().Map.Up()
	st, err := os.Stat(c.s.cfg.Data.Files.Path(c.ds.ID, dataset.Manifest))
	if err != nil || st.Size() > smallManifest || len(up) > smallJob {
		return
	}
	var g errgroup.Group
	for _, id := range up {
		if id != c.s.cfg.Node.Self() && !slices.Contains(has, id) {
			g.Go(func() error { return c.replicateOne(ctx, id, q) })
		}
	}
	if err := g.Wait(); err != nil {
		c.log().WithError(err).Debug("manifest not sent to a node: it fetches it")
	}
}

// candidates returns the nodes that can be standbys: the current standbys first, then the nodes that follow this one.
func (c *Coordinator) candidates() (all []metadata.NodeID) {
	self, up := c.s.cfg.Node.Self(), c.s.cfg.Node.View().Map.Up()
	for _, id := range c.standby {
		if slices.Contains(up, id) {
			all = append(all, id)
		}
	}
	at, _ := slices.BinarySearch(up, self)
	for i := range up {
		id := up[(at+i)%len(up)]
		if id != self && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// standbyFile holds the digest of the manifest that this node has, with all files that belong to it, as a standby.
const standbyFile = "standby"

// standbyDigest returns the digest of the manifest that this node has as a standby; "" if it has none.
func (s *Stager) standbyDigest(id metadata.DatasetID) string {
	b, err := os.ReadFile(s.cfg.Data.Files.Path(id, standbyFile))
	if err != nil {
		return ""
	}
	return string(b)
}

// Standby returns the digests of the manifests that this node has as a standby, for datasets that are being published.
func (s *Stager) Standby() map[metadata.DatasetID]string {
	var all map[metadata.DatasetID]string
	for _, ds := range s.cfg.Node.View().Datasets {
		if ds.Phase != cluster.Publishing {
			continue
		}
		if digest := s.standbyDigest(ds.ID); digest != "" {
			if all == nil {
				all = make(map[metadata.DatasetID]string)
			}
			all[ds.ID] = digest
		}
	}
	return all
}

// TakeStandby implements dataset.Stager.
func (s *Stager) TakeStandby(ds cluster.Dataset) (bool, error) {
	s.settle()
	has := s.standbyDigest(ds.ID)
	if has == "" || ds.Coordinator == s.cfg.Node.Self() {
		return false, nil
	}
	if has == ds.Digest {
		return true, nil
	}
	return false, s.dropStandby(ds.ID)
}

// dropStandby removes a manifest that was not published, and the files that belong to it.
func (s *Stager) dropStandby(id metadata.DatasetID) error {
	for _, name := range []string{standbyFile, dataset.Manifest, dataset.Origins, dataset.Order, dataset.AllSkips} {
		if err := os.Remove(s.cfg.Data.Files.Path(id, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("stage-in: %w", err)
		}
	}
	return nil
}

func (s *Stager) onReplicate(ctx context.Context, from metadata.NodeID, q *replicateRequest) (struct{}, error) {
	ds, known := s.cfg.Node.View().Dataset(q.Dataset)
	if !known || ds.Coordinator != from || ds.Attempt != q.Attempt || ds.Phase != cluster.Staging {
		return struct{}{}, fmt.Errorf("dataset %d, which node %d does not coordinate: %w", q.Dataset, from, syscall.EPERM)
	}
	if from == s.cfg.Node.Self() {
		return struct{}{}, nil
	}
	return struct{}{}, s.takeReplica(ctx, from, q)
}

func (s *Stager) takeReplica(ctx context.Context, from metadata.NodeID, q *replicateRequest) error {
	s.settle()
	if q.Digest != "" {
		if err := s.dropStandby(q.Dataset); err != nil {
			return err
		}
	}
	files := s.cfg.Data.Files
	for _, name := range q.Names {
		if err := files.Fetch(ctx, from, q.Dataset, name, files.Path(q.Dataset, name)); err != nil {
			return err
		}
	}
	if q.Digest == "" {
		return nil
	}
	if err := os.WriteFile(files.Path(q.Dataset, standbyFile), []byte(q.Digest), 0o600); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	return nil
}
