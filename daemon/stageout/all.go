package stageout

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// The kinds of tasks.
const (
	kindShare = "stage-out"
	kindPiece = "stage-out-piece"
)

// shareRequest asks a node to copy its share of a stage-out.
type shareRequest struct {
	job.StageOut
	Nodes []metadata.NodeID `json:"nodes"` // all nodes that copy a share
}

// All has every node copy its share of a directory, and waits. The result includes the failures to copy; the error is
// that of a node that could not start.
func (c *Copier) All(ctx context.Context, o job.StageOut) (stageout.Result, error) {
	self, m := c.cfg.Node.Self(), c.cfg.Node.View().Map
	nodes := node.Participants(m)
	results := make([]stageout.Result, len(nodes))
	q, err := tasks.NewRequest(fmt.Sprintf("out-%d-%d", self, time.Now().UnixNano()), kindShare, shareRequest{o, nodes})
	if err != nil {
		return stageout.Result{}, err
	}
	var g errgroup.Group
	for i, id := range nodes {
		g.Go(func() error {
			err := c.cfg.Tasks.Run(ctx, id, q, func(s tasks.State) {
				if _, err := s.Decode(&results[i]); err != nil {
					c.cfg.Node.Log().WithError(err).Warn("result of a node's stage-out is damaged: its files are missing from the totals")
				}
			})
			if ctx.Err() != nil {
				c.cfg.Tasks.Abandon(id, q.ID)
			}
			if err != nil && results[i].Failed == 0 {
				n, _ := m.Node(id)
				return fmt.Errorf("%s: %w", n.Host, err)
			}
			return nil
		})
	}
	err = g.Wait()
	var sum stageout.Result
	for _, r := range results {
		sum.Add(r)
	}
	return sum, err
}

func (c *Copier) prepareShare(_ metadata.NodeID, q *shareRequest) (tasks.Task, error) {
	if err := q.Validate(); err != nil {
		return tasks.Task{}, err
	}
	s := Share{StageOut: q.StageOut}
	if !c.place(&s, q.Nodes) || len(q.Nodes) > len(c.cfg.Job.Hosts) {
		return tasks.Task{}, fmt.Errorf("stage-out by nodes %v: %w", q.Nodes, syscall.EINVAL)
	}
	var result atomic.Pointer[stageout.Result]
	return tasks.Task{
		Run: func(ctx context.Context) error {
			r, err := c.copyShare(ctx, s)
			result.Store(&r)
			return err
		},
		Detail: func(bool) any { return result.Load() },
	}, nil
}

// helpOf returns a function that has one of nodes copy a piece of a file.
func (c *Copier) helpOf(nodes []metadata.NodeID) func(context.Context, int, stageout.Piece) error {
	return func(ctx context.Context, k int, p stageout.Piece) error {
		if k < 0 || k >= len(nodes) {
			return fmt.Errorf("node %d of %d: %w", k, len(nodes), syscall.EINVAL)
		}
		q, err := tasks.NewRequest(fmt.Sprintf("piece-%d-%d-%d", c.cfg.Node.Self(), c.began, c.pieces.Add(1)), kindPiece, p)
		if err != nil {
			return err
		}
		over := false
		if err = c.cfg.Tasks.Start(ctx, nodes[k], q); err == nil {
			err = c.cfg.Tasks.Watch(ctx, nodes[k], q.ID, nil, func(s tasks.State) { over = s.Done })
		} else {
			over = !tasks.MayLag(err) // the node refused it
		}
		if ctx.Err() != nil {
			c.cfg.Tasks.Abandon(nodes[k], q.ID)
		}
		if err != nil && !over {
			return fmt.Errorf("%w: %w", stageout.ErrUnfinished, err)
		}
		return err
	}
}

func (c *Copier) preparePiece(_ metadata.NodeID, p *stageout.Piece) (tasks.Task, error) {
	f := c.piece.Load()
	if f == nil || *f == nil || !filepath.IsAbs(p.To) || !filepath.IsLocal(p.Tmp) {
		return tasks.Task{}, fmt.Errorf("piece of %.200q in %.200q: %w", p.Tmp, p.To, syscall.EINVAL)
	}
	return tasks.Task{Run: func(ctx context.Context) error { return (*f)(ctx, *p) }}, nil
}

// Result is the result of a stage-out.
type Result = stageout.Result
