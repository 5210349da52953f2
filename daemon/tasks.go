package daemon

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// The kinds of tasks.
const (
	kindPart   = "stage-in"
	kindVerify = "verify"
	kindRepair = "repair"
)

// partRequest asks a node to stage its part of a dataset. Plan has the other parts
// without their items; the node fetches its own as a blob.
type partRequest struct {
	Plan *stagein.Plan `json:"plan"`
	Part int           `json:"part,omitempty"`
}

// partReport is what a node reports of a part.
type partReport struct {
	Progress stagein.Progress `json:"progress"`
	Pieces   []stagein.Piece  `json:"pieces,omitempty"` // of a part that is done
	Kept     []stagein.Try    `json:"kept,omitempty"`
	Seam     *stagein.Seam    `json:"seam,omitempty"` // that a share has told, if it was asked for
}

// abortReq ends shares of a dataset that failed. With Drop what was stored of
// it goes too; that is asked for when no share of any node still runs.
//
// With Void it removes what these tries of its parts have stored, and nothing else.
type abortReq struct {
	Dataset metadata.DatasetID `json:"dataset,omitempty"`
	Drop    bool               `json:"drop,omitempty"`
	Void    []stagein.Try      `json:"void,omitempty"`
}

type seamReq struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Part    int                `json:"part"` // the part that the seam is for
	Seam    stagein.Seam       `json:"seam"`
	// Passed says that it comes from the node that leads the stage-in, to which the
	// reader of the region before has told it.
	Passed bool `json:"passed,omitempty"`
}

func (d *Daemon) registerTasks() {
	d.tasks.Register(kindPart, tasks.KindOf(d.preparePart))
	d.tasks.Register(kindVerify, tasks.KindOf(d.prepareVerify))
	d.tasks.Register(kindRepair, tasks.KindOf(d.prepareRepair))
}

func (d *Daemon) preparePart(from metadata.NodeID, q *partRequest) (tasks.Task, error) {
	if q.Plan == nil {
		return tasks.Task{}, fmt.Errorf("a part of no plan: %w", syscall.EINVAL)
	}
	if err := d.checkPlan(q.Plan, q.Part); err != nil {
		return tasks.Task{}, err
	}
	if err := d.checkLeader(q.Plan.Dataset, from); err != nil {
		return tasks.Task{}, err
	}
	sh := &share{d: d, plan: q.Plan, part: q.Part, from: from}
	return tasks.Task{Group: q.Plan.Dataset, Run: sh.run, Detail: sh.report}, nil
}

// checkPlan refuses a plan that does not fit this job: nothing that a share
// does may depend on a peer being right.
func (d *Daemon) checkPlan(p *stagein.Plan, part int) error {
	bad := func(why string) error {
		return fmt.Errorf("plan of dataset %d: %s: %w", p.Dataset, why, syscall.EINVAL)
	}
	if p.Dataset == 0 || part < 0 || part >= len(p.Parts) {
		return bad(fmt.Sprintf("part %d of %d", part, len(p.Parts)))
	}
	if p.Parts[part].Node != d.job.Self {
		return bad(fmt.Sprintf("part %d is for node %d", part, p.Parts[part].Node))
	}
	return d.checkParts(p)
}

// checkLeader refuses a node that does not lead the stage-in of a dataset, as far as is
// known here: one that led it and has not heard yet that another does would begin what
// that one does not know of.
func (d *Daemon) checkLeader(id metadata.DatasetID, from metadata.NodeID) error {
	if ds, known := d.View().Dataset(id); known && (ds.Coordinator != from || ds.Phase != cluster.Staging) {
		return fmt.Errorf("dataset %d is %v, and led by node %d, not by %d: %w", id, ds.Phase, ds.Coordinator, from, syscall.EPERM)
	}
	return nil
}

// checkParts refuses a plan whose nodes are not of this job.
func (d *Daemon) checkParts(p *stagein.Plan) error {
	for i, x := range p.Parts {
		if int(x.Index) != i || int(x.Node) >= len(d.job.Hosts) {
			return fmt.Errorf("plan of dataset %d: part %d is number %d, for node %d: %w", p.Dataset, i, x.Index, x.Node, syscall.EINVAL)
		}
	}
	if err := d.checkMap(p.Map); err != nil {
		return fmt.Errorf("plan of dataset %d: %v: %w", p.Dataset, err, syscall.EINVAL)
	}
	return nil
}

// checkMap refuses a map that is not of this job's hosts.
func (d *Daemon) checkMap(m cluster.Map) error {
	if len(m.Nodes) != len(d.job.Hosts) {
		return fmt.Errorf("a map of %d nodes of %d", len(m.Nodes), len(d.job.Hosts))
	}
	for i, n := range m.Nodes {
		if int(n.ID) != i {
			return fmt.Errorf("node %d is number %d", i, n.ID)
		}
	}
	return nil
}

// onAbort stops the shares of a dataset that failed, and answers when they are
// over. It is for the node that leads the stage-in to ask, as long as it does; what tries
// in vain have stored, who reads after them has removed.
func (d *Daemon) onAbort(ctx context.Context, from metadata.NodeID, q *abortReq) (struct{}, error) {
	ds, known := d.View().Dataset(q.Dataset)
	if q.Dataset == 0 || known && (ds.Coordinator != from && len(q.Void) == 0 || ds.Phase == cluster.Publishing || ds.Phase == cluster.Sealed) {
		return struct{}{}, fmt.Errorf("dataset %d is %v: %w", q.Dataset, ds.Phase, syscall.EPERM)
	}
	if len(q.Void) > 0 {
		return struct{}{}, d.dropVoid(q.Dataset, q.Void)
	}
	if err := d.stopShares(ctx, q.Dataset); err != nil {
		return struct{}{}, err
	}
	if q.Drop && d.stage.drop(q.Dataset) {
		d.dropDataset(q.Dataset)
	}
	return struct{}{}, nil
}

// stopShares ends the shares of a dataset that failed, and waits for them.
func (d *Daemon) stopShares(ctx context.Context, ds metadata.DatasetID) error {
	d.stage.end(ds)
	return d.tasks.CloseGroup(ctx, ds)
}

// write stores p in the object of ino on this node, unless ino is of a dataset
// that has failed.
func (d *Daemon) write(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	if !ino.Sealed() {
		return d.data.WriteAt(ctx, ino, p, off)
	}
	if err := d.writeStaged(ctx, ino, p, off); err != nil {
		return err
	}
	return d.dirty.wrote(d.ctx, d.data, ino, off, int64(len(p)))
}

func (d *Daemon) writeStaged(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	d.stage.fence.RLock()
	defer d.stage.fence.RUnlock()
	if d.stage.refuses(ino) {
		return fmt.Errorf("object of dataset %d, which failed, or which others have read again: %w", ino.Dataset(), syscall.ECANCELED)
	}
	return d.data.WriteAt(ctx, ino, p, off)
}

func (d *Daemon) onSeam(_ context.Context, from metadata.NodeID, q *seamReq) (struct{}, error) {
	ds, known := d.View().Dataset(q.Dataset)
	if known && ds.Phase != cluster.Staging {
		return struct{}{}, fmt.Errorf("seam of dataset %d, which is %v: %w", q.Dataset, ds.Phase, syscall.ESTALE)
	}
	if q.Passed && known && ds.Coordinator != from {
		return struct{}{}, fmt.Errorf("seam of dataset %d, which node %d does not lead: %w", q.Dataset, from, syscall.EPERM)
	}
	if !q.Passed {
		return struct{}{}, d.stage.keepSeam(q)
	}
	c, err := d.stage.seam(seamKey{q.Dataset, q.Part})
	if err != nil {
		return struct{}{}, err
	}
	select {
	case c <- q.Seam:
	default: // sent again after an answer that was lost
	}
	return struct{}{}, nil
}
