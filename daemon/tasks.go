package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
)

// taskReq asks a node to do its share of something long. It returns at once;
// wire.OpStagePoll tells how it fares.
type taskReq struct {
	Task string `json:"task"` // unique in the job
	// Plan and Part are a share of a stage-in. Plan has the other parts
	// without their items; the node fetches its own items as a blob.
	Plan *stagein.Plan `json:"plan,omitempty"`
	Part int           `json:"part,omitempty"`
	// Out, Self and N are a share of a stage-out.
	Out  *OutSpec `json:"out,omitempty"`
	Self int      `json:"self,omitempty"`
	N    int      `json:"n,omitempty"`
}

type pollReq struct {
	Task string `json:"task"`
}

// taskState is what a node says of a task.
type taskState struct {
	Done     bool               `json:"done,omitempty"`
	Error    string             `json:"error,omitempty"`
	Progress stagein.Progress   `json:"progress"`
	Out      *stagein.OutResult `json:"out,omitempty"`
}

// abortReq ends shares of a dataset that failed. With Drop what was stored of
// it goes too; that is asked for when no share of any node still runs.
type abortReq struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Drop    bool               `json:"drop,omitempty"`
}

type seamReq struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Part    int                `json:"part"` // the part that the seam is for
	Seam    stagein.Seam       `json:"seam"`
}

// seamKey is a region of a dataset.
type seamKey struct {
	ds   metadata.DatasetID
	part int
}

// task is a share that runs, or has run, on this node.
type task struct {
	dataset  metadata.DatasetID
	cancel   context.CancelFunc
	done     chan struct{} // closed when it is over
	progress func() stagein.Progress

	mu    sync.Mutex
	state taskState // guarded by mu
}

func (t *task) snapshot() taskState {
	t.mu.Lock()
	s := t.state
	t.mu.Unlock()
	if t.progress != nil {
		s.Progress = t.progress()
	}
	return s
}

func (t *task) finish(out *stagein.OutResult, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.Done, t.state.Out = true, out
	if err != nil {
		t.state.Error = errnoText(err)
	}
	close(t.done)
}

// maxTasks bounds what peers can make this node remember.
const maxTasks = 4096

// staging is the shares that run on this node, and the seams that came for them.
type staging struct {
	mu    sync.Mutex // stageMu of the package comment
	tasks map[string]*task
	seams map[seamKey]chan stagein.Seam // one seam for each; buffered, so that it can come early
	jobs  map[metadata.DatasetID]*intake
	ended map[metadata.DatasetID]bool // failed: a share that comes late is refused
	wg    sync.WaitGroup
}

func (s *staging) init() {
	s.tasks = make(map[string]*task)
	s.seams = make(map[seamKey]chan stagein.Seam)
	s.jobs = make(map[metadata.DatasetID]*intake)
	s.ended = make(map[metadata.DatasetID]bool)
}

func (s *staging) wait() { s.wg.Wait() }

// seam is the mailbox of a region.
func (s *staging) seam(k seamKey) (chan stagein.Seam, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.seams[k]
	if !ok {
		if len(s.seams) >= maxTasks {
			return nil, fmt.Errorf("seams: %w", syscall.EBUSY)
		}
		c = make(chan stagein.Seam, 1)
		s.seams[k] = c
	}
	return c, nil
}

// end marks a dataset as failed, and returns its shares that run here.
func (s *staging) end(ds metadata.DatasetID) []*task {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[ds] = true
	for k := range s.seams {
		if k.ds == ds {
			delete(s.seams, k)
		}
	}
	var ts []*task
	for _, t := range s.tasks {
		if t.dataset == ds {
			ts = append(ts, t)
		}
	}
	return ts
}

func (s *staging) task(id string) (*task, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[id]
	return t, ok
}

func (s *staging) add(id string, t *task) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.tasks[id]; ok {
		return fmt.Errorf("task %s: %w", id, syscall.EEXIST)
	}
	if t.dataset != 0 && s.ended[t.dataset] {
		return fmt.Errorf("task %s: %w", id, syscall.ECANCELED)
	}
	if len(s.tasks) >= maxTasks {
		return fmt.Errorf("task %s: %w", id, syscall.EBUSY)
	}
	s.tasks[id] = t
	s.wg.Add(1)
	return nil
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
		t.finish(out, err)
	}()
	return struct{}{}, nil
}

func (d *Daemon) prepare(from metadata.NodeID, q *taskReq, t *task) (func(context.Context) (*stagein.OutResult, error), error) {
	switch {
	case q.Plan != nil:
		if q.Part < 0 || q.Part >= len(q.Plan.Parts) {
			return nil, fmt.Errorf("part %d of %d: %w", q.Part, len(q.Plan.Parts), syscall.EINVAL)
		}
		sh := &share{d: d, plan: q.Plan, part: q.Part, from: from}
		t.dataset = q.Plan.Dataset
		t.progress = sh.progress
		return func(ctx context.Context) (*stagein.OutResult, error) { return nil, sh.run(ctx) }, nil
	case q.Out != nil:
		return func(ctx context.Context) (*stagein.OutResult, error) {
			r, err := d.stageOut(ctx, *q.Out, q.Self, q.N)
			return &r, err
		}, nil
	}
	return nil, fmt.Errorf("task %s: %w", q.Task, syscall.EINVAL)
}

func (d *Daemon) onPoll(_ context.Context, _ metadata.NodeID, q *pollReq) (taskState, error) {
	t, ok := d.stage.task(q.Task)
	if !ok {
		return taskState{}, fmt.Errorf("task %s: %w", q.Task, syscall.ESRCH)
	}
	return t.snapshot(), nil
}

// onAbort stops the shares of a dataset that failed, and answers when they are
// over.
func (d *Daemon) onAbort(ctx context.Context, _ metadata.NodeID, q *abortReq) (struct{}, error) {
	for _, t := range d.stage.end(q.Dataset) {
		t.cancel()
		select {
		case <-t.done:
		case <-ctx.Done():
			return struct{}{}, ctx.Err()
		}
	}
	if q.Drop {
		d.dropDataset(q.Dataset)
	}
	return struct{}{}, nil
}

func (d *Daemon) onSeam(_ context.Context, _ metadata.NodeID, q *seamReq) (struct{}, error) {
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

// decodeJSON is json.Unmarshal with an errno.
func decodeJSON(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%v: %w", err, syscall.EPROTO)
	}
	return nil
}
