package daemon

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// taskReq asks a node to do its share of something long. It returns at once;
// wire.OpStagePoll tells how it fares.
type taskReq struct {
	Task string `json:"task"` // unique in the job
	// Plan and Part are a share of a stage-in. Plan has the other parts
	// without their items; the node fetches its own items as a blob.
	Plan *stagein.Plan `json:"plan,omitempty"`
	Part int           `json:"part,omitempty"`
	// Out is a stage-out of which the node does its share; Crew is all that do
	// one.
	Out  *job.StageOut     `json:"out,omitempty"`
	Crew []metadata.NodeID `json:"crew,omitempty"`
	// Piece is a piece of a file of a stage-out.
	Piece *stageout.Piece `json:"piece,omitempty"`
	// Verify is a share of a dataset that is read again.
	Verify *verifyReq `json:"verify,omitempty"`
	// Mend is files that are fetched again.
	Mend *mendReq `json:"mend,omitempty"`
}

type pollReq struct {
	Task string `json:"task"`
	Seam bool   `json:"seam,omitempty"` // is wanted, as the one who leads does not have it
}

// taskState is what a node says of a task.
type taskState struct {
	Done     bool             `json:"done,omitempty"`
	Error    string           `json:"error,omitempty"`
	Progress stagein.Progress `json:"progress"`
	Out      *stageout.Result `json:"out,omitempty"`
	Verify   *VerifyResult    `json:"verify,omitempty"`
	Mended   *mendResult      `json:"mended,omitempty"`
	Pieces   []stagein.Piece  `json:"pieces,omitempty"` // of a share that is done
	Kept     []stagein.Try    `json:"kept,omitempty"`
	Seam     *stagein.Seam    `json:"seam,omitempty"` // that a share has told, if it was asked for
}

// abortReq ends shares of a dataset that failed. With Drop what was stored of
// it goes too; that is asked for when no share of any node still runs.
//
// With Void it removes what these tries of its parts have stored, and nothing else.
//
// With Task it ends that share of a stage-out instead, which nobody waits for
// any more.
type abortReq struct {
	Dataset metadata.DatasetID `json:"dataset,omitempty"`
	Drop    bool               `json:"drop,omitempty"`
	Void    []stagein.Try      `json:"void,omitempty"`
	Task    string             `json:"task,omitempty"`
}

type seamReq struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Part    int                `json:"part"` // the part that the seam is for
	Seam    stagein.Seam       `json:"seam"`
	// Passed says that it comes from the node that leads the stage-in, to which the
	// reader of the region before has told it.
	Passed bool `json:"passed,omitempty"`
}

// onTask starts a share.
func (d *Daemon) onTask(_ context.Context, from metadata.NodeID, q *taskReq) (struct{}, error) {
	ctx, cancel := context.WithCancel(d.ctx)
	t := &task{cancel: cancel, done: make(chan struct{})}
	run, err := d.prepare(from, q, t)
	if err == nil {
		err = d.stage.add(q.Task, t)
	}
	if err != nil {
		cancel()
		return struct{}{}, err
	}
	go func() {
		defer d.stage.wg.Done()
		defer cancel()
		out, err := run(ctx)
		if err != nil {
			d.log.WithError(err).WithField("task", q.Task).Warn("share failed")
		}
		d.stage.finish(q.Task, t, out, err)
	}()
	return struct{}{}, nil
}

// maxTaskName bounds the name of a task, in bytes.
const maxTaskName = 128

func (d *Daemon) prepare(from metadata.NodeID, q *taskReq, t *task) (func(context.Context) (*stageout.Result, error), error) {
	switch {
	case q.Task == "" || len(q.Task) > maxTaskName || q.kinds() != 1:
		return nil, fmt.Errorf("task %.32q: %w", q.Task, syscall.EINVAL)
	case q.Verify != nil:
		return func(ctx context.Context) (*stageout.Result, error) {
			r, err := d.verifyShare(ctx, *q.Verify)
			t.mu.Lock()
			defer t.mu.Unlock()
			t.state.Verify = r
			return nil, err
		}, nil
	case q.Mend != nil:
		return func(ctx context.Context) (*stageout.Result, error) {
			r, err := d.mendShare(ctx, *q.Mend)
			t.mu.Lock()
			defer t.mu.Unlock()
			t.state.Mended = r
			return nil, err
		}, nil
	case q.Plan != nil:
		if err := d.checkPlan(q.Plan, q.Part); err != nil {
			return nil, err
		}
		if err := d.checkLeader(q.Plan.Dataset, from); err != nil {
			return nil, err
		}
		sh := &share{d: d, plan: q.Plan, part: q.Part, from: from}
		t.dataset = q.Plan.Dataset
		t.progress, t.seam = sh.progress, sh.told.Load
		return func(ctx context.Context) (*stageout.Result, error) {
			err := sh.run(ctx)
			t.mu.Lock()
			defer t.mu.Unlock()
			t.state.Pieces, t.state.Kept = sh.pieces()
			return nil, err
		}, nil
	case q.Piece != nil:
		return d.preparePiece(*q.Piece)
	}
	if err := q.Out.Validate(); err != nil {
		return nil, err
	}
	self := slices.Index(q.Crew, d.job.Self)
	if self < 0 || len(q.Crew) > len(d.job.Hosts) {
		return nil, fmt.Errorf("stage-out by nodes %v: %w", q.Crew, syscall.EINVAL)
	}
	return func(ctx context.Context) (*stageout.Result, error) {
		r, err := d.stageOut(ctx, OutShare{StageOut: *q.Out, Self: self, N: len(q.Crew), Help: d.helpOf(q.Crew)})
		return &r, err
	}, nil
}

// kinds is how many things a request asks for, of which it must be one.
func (q *taskReq) kinds() (n int) {
	for _, asked := range []bool{q.Plan != nil, q.Out != nil, q.Piece != nil, q.Verify != nil, q.Mend != nil} {
		if asked {
			n++
		}
	}
	return n
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

func (d *Daemon) onPoll(_ context.Context, _ metadata.NodeID, q *pollReq) (taskState, error) {
	t, ok := d.stage.task(q.Task)
	if !ok {
		return taskState{}, fmt.Errorf("task %s: %w", q.Task, syscall.ESRCH)
	}
	s := t.snapshot()
	if q.Seam && t.seam != nil {
		s.Seam = t.seam()
	}
	return s, nil
}

// onAbort stops the shares of a dataset that failed, and answers when they are
// over. It is for the node that leads the stage-in to ask, as long as it does; what tries
// in vain have stored, who reads after them has removed.
func (d *Daemon) onAbort(ctx context.Context, from metadata.NodeID, q *abortReq) (struct{}, error) {
	if q.Task != "" {
		if t, ok := d.stage.task(q.Task); ok && t.dataset == 0 {
			t.cancel()
		}
		return struct{}{}, nil
	}
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
	for _, t := range d.stage.end(ds) {
		t.cancel()
		select {
		case <-t.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
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

// onAll has every node that serves do its part of q.
func (d *Daemon) onAll(ctx context.Context, q taskReq, see func(taskState)) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, id := range node.Participants(d.View().Map) {
		g.Go(func() error {
			err := d.runTask(ctx, id, q, see)
			if ctx.Err() != nil {
				d.abandon(id, q.Task)
			}
			if n, _ := d.View().Map.Node(id); err != nil && !node.Serving(n) {
				return fmt.Errorf("%s was lost meanwhile, others have what it had: do it again: %w", n.Host, err)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", d.job.Hosts[id], err)
			}
			return nil
		})
	}
	return g.Wait()
}

// abandon ends a node's share of a task that nobody waits for any more.
func (d *Daemon) abandon(node metadata.NodeID, task string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), 5*time.Second)
	defer cancel()
	if err := d.Call(ctx, node, wire.OpStageAbort, abortReq{Task: task}, nil); err != nil {
		d.log.WithError(err).WithField("task", task).Warn("a task that was given up goes on")
	}
}
