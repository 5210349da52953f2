package ingest

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/ingest"
)

// kindPart is the kind of the tasks that read a part.
const kindPart = "stage-in"

// partRequest asks a node to read its part of a dataset. The plan has the parts without items; the node fetches the
// items of its own part (dataset.PartFile).
type partRequest struct {
	Plan *stagein.Plan `json:"plan"`
	Part int           `json:"part,omitempty"`
}

// partReport is a node's report about a part.
type partReport struct {
	Progress stagein.Progress `json:"progress"`
	Pieces   []stagein.Piece  `json:"pieces,omitempty"` // of a finished part
	Kept     []stagein.Try    `json:"kept,omitempty"`
	Boundary *ingest.Boundary `json:"boundary,omitempty"` // where the next part begins, in a full report
}

// abortRequest ends the parts of a dataset that failed. Drop also removes everything stored for the dataset; it is sent
// when no part runs on any node. Exclude removes only what these tries have stored, and the stage-in continues.
type abortRequest struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Drop    bool               `json:"drop,omitempty"`
	Exclude []stagein.Try      `json:"exclude,omitempty"`
}

// boundaryRequest carries the beginning of a part: from the reader of the previous part to the coordinator, and from
// there to the reader of the part.
type boundaryRequest struct {
	Dataset  metadata.DatasetID `json:"dataset"`
	Part     int                `json:"part"`
	Boundary ingest.Boundary    `json:"boundary"`
	ToReader bool               `json:"to_reader,omitempty"`
}

func (s *Stager) preparePart(from metadata.NodeID, q *partRequest) (tasks.Task, error) {
	if err := s.checkPlan(q.Plan, q.Part); err != nil {
		return tasks.Task{}, err
	}
	if err := s.checkCoordinator(q.Plan.Dataset, from); err != nil {
		return tasks.Task{}, err
	}
	p := &participant{s: s, plan: q.Plan, part: q.Part, from: from}
	return tasks.Task{Group: q.Plan.Dataset, Run: p.run, Detail: p.report}, nil
}

// checkPlan refuses a plan that does not fit this job: a participant must not rely on a peer being correct.
func (s *Stager) checkPlan(p *stagein.Plan, part int) error {
	switch {
	case p == nil || p.Dataset == 0:
		return fmt.Errorf("part of no plan: %w", syscall.EINVAL)
	case part < 0 || part >= len(p.Parts):
		return fmt.Errorf("plan of dataset %d: part %d of %d: %w", p.Dataset, part, len(p.Parts), syscall.EINVAL)
	case p.Parts[part].Node != s.cfg.Node.Self():
		return fmt.Errorf("plan of dataset %d: part %d is for node %d: %w", p.Dataset, part, p.Parts[part].Node, syscall.EINVAL)
	}
	return s.checkParts(p)
}

// checkCoordinator refuses a node that does not coordinate a dataset, as far as this node knows: it may not have seen
// yet that another node has taken over.
func (s *Stager) checkCoordinator(id metadata.DatasetID, from metadata.NodeID) error {
	if ds, known := s.cfg.Node.View().Dataset(id); known && (ds.Coordinator != from || ds.Phase != cluster.Staging) {
		return fmt.Errorf("dataset %d is %v, and coordinated by node %d, not by %d: %w", id, ds.Phase, ds.Coordinator, from, syscall.EPERM)
	}
	return nil
}

// checkParts refuses a plan whose nodes are not those of this job.
func (s *Stager) checkParts(p *stagein.Plan) error {
	for i, x := range p.Parts {
		if int(x.Index) != i || int(x.Node) >= len(s.cfg.Job.Hosts) {
			return fmt.Errorf("plan of dataset %d: part %d is number %d, for node %d: %w", p.Dataset, i, x.Index, x.Node, syscall.EINVAL)
		}
	}
	if err := s.checkMap(p.Map); err != nil {
		return fmt.Errorf("plan of dataset %d: %v: %w", p.Dataset, err, syscall.EINVAL)
	}
	return nil
}

func (s *Stager) checkMap(m cluster.Map) error {
	if len(m.Nodes) != len(s.cfg.Job.Hosts) {
		return fmt.Errorf("a map of %d nodes of %d", len(m.Nodes), len(s.cfg.Job.Hosts))
	}
	for i, n := range m.Nodes {
		if int(n.ID) != i {
			return fmt.Errorf("node %d is number %d", i, n.ID)
		}
	}
	return nil
}

// onAbort ends this node's part of a dataset, and answers when the part has ended. Only the coordinator may call it.
func (s *Stager) onAbort(ctx context.Context, from metadata.NodeID, q *abortRequest) (struct{}, error) {
	ds, known := s.cfg.Node.View().Dataset(q.Dataset)
	if q.Dataset == 0 || known && (ds.Coordinator != from && len(q.Exclude) == 0 || ds.Phase == cluster.Publishing || ds.Phase == cluster.Sealed) {
		return struct{}{}, fmt.Errorf("abort of dataset %d, which is %v, by node %d: %w", q.Dataset, ds.Phase, from, syscall.EPERM)
	}
	if len(q.Exclude) > 0 {
		return struct{}{}, s.cfg.Data.Fence.Exclude(q.Dataset, q.Exclude)
	}
	if err := s.cfg.Data.Follower.StopTasks(ctx, q.Dataset); err != nil {
		return struct{}{}, err
	}
	if q.Drop && s.cfg.Data.Fence.ClaimRemoval(q.Dataset) {
		s.cfg.Data.Follower.Drop(q.Dataset)
	}
	return struct{}{}, nil
}

func (s *Stager) onBoundary(_ context.Context, from metadata.NodeID, q *boundaryRequest) (struct{}, error) {
	ds, known := s.cfg.Node.View().Dataset(q.Dataset)
	if known && ds.Phase != cluster.Staging {
		return struct{}{}, fmt.Errorf("boundary of dataset %d, which is %v: %w", q.Dataset, ds.Phase, syscall.ESTALE)
	}
	if q.ToReader && known && ds.Coordinator != from {
		return struct{}{}, fmt.Errorf("boundary of dataset %d, which node %d does not coordinate: %w", q.Dataset, from, syscall.EPERM)
	}
	if !q.ToReader {
		c := s.coordinator(q.Dataset)
		if c == nil {
			return struct{}{}, fmt.Errorf("boundary of dataset %d, which this node does not coordinate: %w", q.Dataset, syscall.ESTALE)
		}
		return struct{}{}, c.keepBoundary(q.Part, q.Boundary)
	}
	box, err := s.mailbox(boundaryKey{q.Dataset, q.Part})
	if err != nil {
		return struct{}{}, err
	}
	select {
	case box <- q.Boundary:
	default: // repeated after a lost answer
	}
	return struct{}{}, nil
}

// mailbox returns the channel in which the boundary of a part waits for its reader.
func (s *Stager) mailbox(k boundaryKey) (chan ingest.Boundary, error) {
	if s.cfg.Data.Fence.Ended(k.ds) {
		return nil, fmt.Errorf("boundary of dataset %d, which failed: %w", k.ds, syscall.ECANCELED)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.boundaries[k]
	if !ok {
		if len(s.boundaries) >= maxBoundaries {
			return nil, fmt.Errorf("too many boundaries (%d) are waiting on this node: %w", maxBoundaries, syscall.EBUSY)
		}
		c = make(chan ingest.Boundary, 1)
		s.boundaries[k] = c
	}
	return c, nil
}
