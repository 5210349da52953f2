package raftstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// NotLeaderError means that this member does not lead, or no longer leads. In the latter case the proposal may still be
// committed: every Command but KindAddDataset can be repeated safely, and a repeated KindAddDataset returns EEXIST. It
// wraps EAGAIN.
type NotLeaderError struct {
	Leader metadata.NodeID // the current leader
	Known  bool            // whether Leader is known
}

// Error implements error.
func (e *NotLeaderError) Error() string {
	if !e.Known {
		return "not the leader of the control group, which has none now"
	}
	return fmt.Sprintf("not the leader of the control group, which is node %d", e.Leader)
}

// Unwrap returns EAGAIN.
func (e *NotLeaderError) Unwrap() error { return syscall.EAGAIN }

// enqueueTimeout bounds how long a proposal without a deadline is queued.
const enqueueTimeout = 10 * time.Second

// Propose makes the group agree on c, and returns the resulting View. Only the leader can do that; others return a
// *NotLeaderError. A Command that cannot be applied returns its errno with the current View. If ctx ends first, the
// Command may still be committed.
func (g *Group) Propose(ctx context.Context, c Command) (cluster.View, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return cluster.View{}, fmt.Errorf("command %q: %v: %w", c.Kind, err, syscall.EINVAL)
	}
	if ctx.Err() != nil {
		return cluster.View{}, ctxErrno(ctx)
	}
	answer := make(chan result, 1) // so that the goroutine ends without a reader
	if !g.begin() {
		return cluster.View{}, fmt.Errorf("control group is closed: %w", syscall.ESHUTDOWN)
	}
	go func() {
		defer g.proposals.Done()
		r := g.agree(data, patience(ctx))
		answer <- r
		if r.err == nil {
			g.confirm()
		}
	}()
	select {
	case r := <-answer:
		return r.view, r.err
	case <-ctx.Done():
		return cluster.View{}, ctxErrno(ctx)
	}
}

// begin counts a proposal, unless the group is closed.
func (g *Group) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.proposals.Add(1)
	}
	return !g.closed
}

// agree waits for Raft's answer, which always arrives: the entry is committed, or the leader steps down.
func (g *Group) agree(data []byte, timeout time.Duration) result {
	f := g.raft.Apply(data, timeout)
	err := f.Error()
	switch {
	case err == nil:
		return f.Response().(result)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		err = fmt.Errorf("%v: %w", err, syscall.ETIMEDOUT)
	case errors.Is(err, raft.ErrRaftShutdown):
		err = fmt.Errorf("%v: %w", err, syscall.ESHUTDOWN)
	default: // not the leader, or no longer
		id, known := g.Leader()
		err = &NotLeaderError{Leader: id, Known: known && id != g.cfg.Self}
	}
	return result{g.View(), err}
}

// confirm makes the other members learn of the last commit through an empty entry; otherwise they learn of it with the
// next entry, or after Timing.Commit.
func (g *Group) confirm() {
	if len(g.cfg.Members) > 1 {
		g.raft.Barrier(g.cfg.Timing.Heartbeat) // the result does not matter
	}
}

// Confirm returns nil if this member leads the group, and its View has all changes that were agreed on before the call.
func (g *Group) Confirm() error {
	if !g.begin() {
		return fmt.Errorf("the group is closed: %w", syscall.ESHUTDOWN)
	}
	defer g.proposals.Done()
	return g.raft.Barrier(g.cfg.Timing.Heartbeat).Error()
}

func patience(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return max(min(time.Until(d), enqueueTimeout), time.Millisecond)
	}
	return enqueueTimeout
}

func ctxErrno(ctx context.Context) error {
	errno := syscall.EINTR
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		errno = syscall.ETIMEDOUT
	}
	return fmt.Errorf("control group: no agreement yet: %w", errno)
}
