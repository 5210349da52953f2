package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Reasons why a node no longer knows a task. The work of the task is lost.
var (
	ErrNodeLost  = errors.New("the node was lost")
	ErrRestarted = errors.New("its daemon has restarted")
)

const (
	pollEvery   = 100 * time.Millisecond
	abandonTime = 5 * time.Second
)

// NewRequest returns a request of a kind with body as JSON.
func NewRequest(id, kind string, body any) (Request, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return Request{}, fmt.Errorf("task %s: %v: %w", id, err, syscall.EINVAL)
	}
	return Request{ID: id, Kind: kind, Body: b}, nil
}

// Start starts a task on a node. It repeats the call while the map says that the node serves, so a broken connection
// does not make it fail.
func (r *Runner) Start(ctx context.Context, id metadata.NodeID, q Request) error {
	repeated := false
	return r.n.Insist(ctx, id, r.patience, MayLag, func() error {
		err := r.n.Call(ctx, id, wire.OpTask, q, nil)
		if repeated && errors.Is(err, syscall.EEXIST) {
			return nil // an earlier call started it, and its reply was lost
		}
		repeated = true
		return err
	})
}

// MayLag reports whether a call may succeed a moment later: the node does not answer, or does not know yet that the
// caller coordinates a dataset.
func MayLag(err error) bool { return node.Unreachable(err) || errors.Is(err, syscall.EPERM) }

// Run starts a task on a node and watches it until it has ended.
func (r *Runner) Run(ctx context.Context, id metadata.NodeID, q Request, see func(State)) error {
	if err := r.Start(ctx, id, q); err != nil {
		return err
	}
	return r.Watch(ctx, id, q.ID, nil, see)
}

// Watch polls a task until it has ended and passes each state to see. full, which may be nil, says whether the next
// poll asks for large details.
func (r *Runner) Watch(ctx context.Context, id metadata.NodeID, task string, full func() bool, see func(State)) error {
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		s, err := r.poll(ctx, id, pollRequest{ID: task, Full: full != nil && full()})
		if err != nil {
			return err
		}
		see(s)
		if s.Done && s.Error != "" {
			return errors.New(s.Error)
		}
		if s.Done {
			return nil
		}
	}
}

func (r *Runner) poll(ctx context.Context, id metadata.NodeID, q pollRequest) (s State, err error) {
	err = r.n.Insist(ctx, id, r.patience, node.Unreachable, func() error { return r.n.Call(ctx, id, wire.OpTaskPoll, q, &s) })
	n, _ := r.n.View().Map.Node(id)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		err = ctx.Err()
	case node.Unreachable(err) && n.State == cluster.Down:
		err = fmt.Errorf("%w: %w", ErrNodeLost, err)
	case errors.Is(err, syscall.ESRCH):
		err = fmt.Errorf("%w: %w", ErrRestarted, err)
	}
	return s, err
}

// RunAll runs q on every serving node, and cancels it on all nodes if one fails.
func (r *Runner) RunAll(ctx context.Context, q Request, see func(metadata.NodeID, State)) error {
	m := r.n.View().Map
	g, ctx := errgroup.WithContext(ctx)
	for _, id := range node.Participants(m) {
		host, _ := m.Node(id)
		g.Go(func() error {
			err := r.Run(ctx, id, q, func(s State) { see(id, s) })
			if ctx.Err() != nil {
				r.Abandon(id, q.ID)
			}
			if n, _ := r.n.View().Map.Node(id); err != nil && !node.Serving(n) {
				return fmt.Errorf("%s failed meanwhile and other nodes take over its files: repeat the command: %w", n.Host, err)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", host.Host, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Abandon cancels a task whose caller no longer waits.
func (r *Runner) Abandon(id metadata.NodeID, task string) {
	ctx, cancel := context.WithTimeout(context.Background(), abandonTime)
	defer cancel()
	if err := r.n.Call(ctx, id, wire.OpTaskCancel, cancelRequest{task}, nil); err != nil {
		r.n.Log().WithError(err).WithField("task", task).Warn("task not cancelled: it runs to its end")
	}
}
