package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// remind has those who are heirs already keep how the stage-in stands now.
func (in *intake) remind(ctx context.Context) error {
	in.keep.slot <- struct{}{}
	defer func() { <-in.keep.slot }()
	if _, err := in.savePass(); err != nil {
		return err
	}
	q := entrustReq{Dataset: in.ds.ID, Turn: in.ds.Turn, Names: []string{passFile}}
	var errs []error
	for _, id := range in.keep.heirs {
		errs = append(errs, in.d.Call(ctx, id, wire.OpStandbyReplicate, q, nil))
	}
	return errors.Join(errs...)
}

// bequeath gives heirs the manifest, and what a fill needs beside it, so that it can be
// published without this node.
func (in *intake) bequeath(ctx context.Context) {
	in.keep.slot <- struct{}{}
	defer func() { <-in.keep.slot }()
	names := []string{manifestFile}
	if in.ds.Fill {
		names = append(names, originsFile, orderFile)
	}
	if in.req.OnError == stagein.OnErrorSkip {
		names = append(names, allSkips)
	}
	q := entrustReq{Dataset: in.ds.ID, Turn: in.ds.Turn, Names: names, Digest: in.ds.Digest}
	in.handOut(ctx, q, in.give(ctx, q))
}

// give has heirs do as q says, the ones that there are before all others, and
// returns those that did.
func (in *intake) give(ctx context.Context, q entrustReq) (all []metadata.NodeID) {
	for _, id := range in.mayInherit() {
		if len(all) == heirs || ctx.Err() != nil {
			break
		}
		err := in.d.Insist(ctx, id, 2*in.d.cfg.Timing.Down, tasks.MayLag, func() error {
			return in.d.Call(ctx, id, wire.OpStandbyReplicate, q, nil)
		})
		if err == nil {
			all = append(all, id)
			continue
		}
		in.d.log.WithError(err).WithFields(map[string]any{"dataset": in.ds.Name, "host": in.d.job.Hosts[id]}).
			Warn("could not go on with the stage-in if this node were lost")
	}
	return all
}

// handOut gives a small manifest to the nodes of a small job that do not have it yet, so that
// none begins later than the others: they would have the source to themselves, and who reads
// waits for what the late one is to have. It is waited for as the heirs are:
// the tree is not readable before all nodes that are up have it.
func (in *intake) handOut(ctx context.Context, q entrustReq, has []metadata.NodeID) {
	up := in.d.View().Map.Up()
	st, err := os.Stat(filepath.Join(in.d.stageDir(in.ds.ID), manifestFile))
	if err != nil || st.Size() > smallManifest || len(up) > smallJob {
		return
	}
	var g errgroup.Group
	for _, id := range up {
		if id != in.d.job.Self && !slices.Contains(has, id) {
			g.Go(func() error {
				return in.d.Insist(ctx, id, 2*in.d.cfg.Timing.Down, tasks.MayLag, func() error {
					return in.d.Call(ctx, id, wire.OpStandbyReplicate, q, nil)
				})
			})
		}
	}
	if err := g.Wait(); err != nil {
		in.d.log.WithError(err).WithField("dataset", in.ds.Name).Debug("a node fetches the manifest by itself")
	}
}

// mayInherit is the nodes that can be heirs: those that are before all others, then
// those that come after this one.
func (in *intake) mayInherit() (all []metadata.NodeID) {
	up := in.d.View().Map.Up()
	for _, id := range in.keep.heirs {
		if slices.Contains(up, id) {
			all = append(all, id)
		}
	}
	at, _ := slices.BinarySearch(up, in.d.job.Self)
	for i := range up {
		id := up[(at+i)%len(up)]
		if id != in.d.job.Self && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// entrustReq has a node fetch files of a stage-in from the one who leads it.
type entrustReq struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Turn    int                `json:"turn"`
	Names   []string           `json:"names"`
	Digest  string             `json:"digest,omitempty"` // of the manifest, if that is among them
}

// heirFile has the digest of the manifest that this node has as an heir, with all that
// belongs to it.
const heirFile = "inherited"

// inherited is what heirFile says of a dataset; "" is that there is none.
func (d *Daemon) inherited(ds metadata.DatasetID) string {
	b, err := os.ReadFile(filepath.Join(d.stageDir(ds), heirFile))
	if err != nil {
		return ""
	}
	return string(b)
}

// inheritance is what this node has inherited of what is being published.
func (d *Daemon) inheritance() map[metadata.DatasetID]string {
	var all map[metadata.DatasetID]string
	for _, ds := range d.View().Datasets {
		if ds.Phase != cluster.Publishing {
			continue
		}
		if digest := d.inherited(ds.ID); digest != "" {
			if all == nil {
				all = make(map[metadata.DatasetID]string)
			}
			all[ds.ID] = digest
		}
	}
	return all
}

// disinherit removes what this node has as an heir of a manifest that did not come to be
// published.
func (d *Daemon) disinherit(ds metadata.DatasetID) error {
	for _, name := range []string{heirFile, manifestFile, originsFile, orderFile, allSkips} {
		if err := os.Remove(filepath.Join(d.stageDir(ds), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("stage-in: %w", err)
		}
	}
	return nil
}

func (d *Daemon) onEntrust(ctx context.Context, from metadata.NodeID, q *entrustReq) (struct{}, error) {
	ds, known := d.View().Dataset(q.Dataset)
	if !known || ds.Coordinator != from || ds.Turn != q.Turn || ds.Phase != cluster.Staging {
		return struct{}{}, fmt.Errorf("dataset %d, which node %d does not lead: %w", q.Dataset, from, syscall.EPERM)
	}
	if from == d.job.Self {
		return struct{}{}, nil
	}
	return struct{}{}, d.inherit(ctx, from, q)
}

// inherit fetches what q says.
func (d *Daemon) inherit(ctx context.Context, from metadata.NodeID, q *entrustReq) error {
	d.stage.settled()
	if q.Digest != "" {
		if err := d.disinherit(q.Dataset); err != nil {
			return err
		}
	}
	dir := d.stageDir(q.Dataset)
	for _, name := range q.Names {
		if !blobName(name) {
			return fmt.Errorf("blob %q: %w", name, syscall.EINVAL)
		}
		if err := d.fetch(ctx, from, blobReq{Dataset: q.Dataset, Name: name}, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if q.Digest == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, heirFile), []byte(q.Digest), 0o600); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	return nil
}
