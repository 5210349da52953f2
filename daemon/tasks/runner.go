package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// Limits on the tasks and results that peers can make this node hold.
const (
	maxRunning = 512
	maxOver    = 1024 // results kept for the nodes that started the tasks
	maxID      = 128  // bytes of a task ID
)

// Request starts a task.
type Request struct {
	ID   string          `json:"id"` // unique in the job
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body,omitempty"` // the request of the kind
}

// State is the state of a task.
type State struct {
	Done   bool            `json:"done,omitempty"`
	Error  string          `json:"error,omitempty"`
	Detail json.RawMessage `json:"detail,omitempty"` // detail of the kind: progress, or a result
}

// Decode decodes the detail of a kind into v. It reports false if there is none.
func (s *State) Decode(v any) (bool, error) {
	if len(s.Detail) == 0 || string(s.Detail) == "null" {
		return false, nil
	}
	return true, node.DecodeJSON(s.Detail, v)
}

// Task is a task that a kind has prepared.
type Task struct {
	Group metadata.DatasetID // tasks of a group are ended together; 0 means no group
	Run   func(ctx context.Context) error
	// Detail returns what a poll reports in addition to the outcome; nil means nothing. It is called while Run runs,
	// and afterwards. It leaves out large parts unless full is set.
	Detail func(full bool) any
}

// Kind checks a request of node from and prepares the task.
type Kind func(from metadata.NodeID, body []byte) (Task, error)

// KindOf returns a Kind whose requests are a Q in JSON.
func KindOf[Q any](prepare func(from metadata.NodeID, q *Q) (Task, error)) Kind {
	return func(from metadata.NodeID, body []byte) (Task, error) {
		var q Q
		if err := json.Unmarshal(body, &q); err != nil {
			return Task{}, fmt.Errorf("%v: %w", err, syscall.EINVAL)
		}
		return prepare(from, &q)
	}
}

// running is a task that runs, or has run, on this node.
type running struct {
	Task
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when the task has ended

	mu    sync.Mutex
	state State // guarded by mu
}

func (t *running) snapshot(full bool) (State, error) {
	t.mu.Lock()
	s := t.state
	t.mu.Unlock()
	if t.Detail == nil {
		return s, nil
	}
	var err error
	if s.Detail, err = json.Marshal(t.Detail(full)); err != nil {
		return s, fmt.Errorf("task: %v: %w", err, syscall.EIO)
	}
	return s, nil
}

func (t *running) finish(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.Done = true
	if err != nil {
		t.state.Error = node.ErrorText(err)
	}
	close(t.done)
}

// Runner runs the tasks of this node and starts tasks on others.
type Runner struct {
	n        node.Node
	patience time.Duration // how long calls to a silent node are repeated
	kinds    map[string]Kind

	wg     sync.WaitGroup
	mu     sync.Mutex
	tasks  map[string]*running         // guarded by mu
	over   []string                    // guarded by mu; ended tasks, oldest first
	closed map[metadata.DatasetID]bool // guarded by mu; groups that start no more tasks
}

// New returns a Runner. It gives up a node that does not answer for patience, unless the map gives the node up before.
func New(n node.Node, patience time.Duration) *Runner {
	return &Runner{
		n: n, patience: patience, kinds: make(map[string]Kind),
		tasks: make(map[string]*running), closed: make(map[metadata.DatasetID]bool),
	}
}

// Register adds a kind. It must be called before the handlers serve.
func (r *Runner) Register(name string, k Kind) { r.kinds[name] = k }

// Handlers returns the handlers for calls from other nodes.
func (r *Runner) Handlers() node.Handlers {
	return node.Handlers{
		wire.OpTask:       node.HandleJSON(r.onTask),
		wire.OpTaskPoll:   node.HandleJSON(r.onPoll),
		wire.OpTaskCancel: node.HandleJSON(r.onCancel),
	}
}

// Wait waits until no task runs. The caller has ended the tasks' contexts before.
func (r *Runner) Wait() { r.wg.Wait() }

// Running counts the tasks that have not ended.
func (r *Runner) Running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tasks) - len(r.over)
}

func (r *Runner) onTask(_ context.Context, from metadata.NodeID, q *Request) (struct{}, error) {
	kind, ok := r.kinds[q.Kind]
	if q.ID == "" || len(q.ID) > maxID || !ok {
		return struct{}{}, fmt.Errorf("task %.32q of kind %.32q: %w", q.ID, q.Kind, syscall.EINVAL)
	}
	task, err := kind(from, q.Body)
	if err != nil {
		return struct{}{}, err
	}
	t := &running{Task: task, done: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	if err := r.add(q.ID, t); err != nil {
		t.cancel()
		return struct{}{}, err
	}
	r.n.Spawn(func(ctx context.Context) { r.run(ctx, q, t) })
	return struct{}{}, nil
}

func (r *Runner) run(ctx context.Context, q *Request, t *running) {
	defer r.wg.Done()
	defer t.cancel()
	defer context.AfterFunc(ctx, t.cancel)()
	err := t.Run(t.ctx)
	if err != nil {
		r.n.Log().WithError(err).WithField("task", q.ID).Warn("task for another node failed: that node decides whether to try again")
	}
	r.finish(q.ID, t, err)
}

func (r *Runner) add(id string, t *running) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.tasks[id]; ok {
		return fmt.Errorf("task %s: %w", id, syscall.EEXIST)
	}
	if r.closed[t.Group] {
		return fmt.Errorf("task %s of dataset %d, which failed: %w", id, t.Group, syscall.ECANCELED)
	}
	if len(r.tasks)-len(r.over) >= maxRunning {
		return fmt.Errorf("task %s: %d tasks run here: %w", id, maxRunning, syscall.EBUSY)
	}
	r.tasks[id] = t
	r.wg.Add(1)
	return nil
}

// finish records the outcome of a task, and drops the oldest result.
func (r *Runner) finish(id string, t *running, err error) {
	t.finish(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = append(r.over, id)
	if len(r.over) > maxOver {
		delete(r.tasks, r.over[0])
		r.over = r.over[1:]
	}
}

func (r *Runner) task(id string) (*running, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok := r.tasks[id]
	return t, ok
}

type pollRequest struct {
	ID   string `json:"id"`
	Full bool   `json:"full,omitempty"` // also report large details
}

func (r *Runner) onPoll(_ context.Context, _ metadata.NodeID, q *pollRequest) (State, error) {
	t, ok := r.task(q.ID)
	if !ok {
		return State{}, fmt.Errorf("task %.128s: %w", q.ID, syscall.ESRCH)
	}
	return t.snapshot(q.Full)
}

type cancelRequest struct {
	ID string `json:"id"`
}

// onCancel ends a task. Tasks of a group end only with their group.
func (r *Runner) onCancel(_ context.Context, _ metadata.NodeID, q *cancelRequest) (struct{}, error) {
	if t, ok := r.task(q.ID); ok && t.Group == 0 {
		t.cancel()
	}
	return struct{}{}, nil
}

// CancelGroup ends the running tasks of a group, and does not wait.
func (r *Runner) CancelGroup(g metadata.DatasetID) {
	for _, t := range r.group(g, false) {
		t.cancel()
	}
}

// CloseGroup ends the tasks of a group, waits for them, and refuses new ones.
func (r *Runner) CloseGroup(ctx context.Context, g metadata.DatasetID) error {
	for _, t := range r.group(g, true) {
		t.cancel()
		select {
		case <-t.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (r *Runner) group(g metadata.DatasetID, closeIt bool) (all []*running) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if closeIt {
		r.closed[g] = true
	}
	for _, t := range r.tasks {
		if t.Group == g {
			all = append(all, t)
		}
	}
	return all
}
