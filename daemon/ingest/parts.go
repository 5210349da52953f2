package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/ingest"
)

// maxTries bounds the tries of a part: if it fails again and again, there is a cause.
const maxTries = 8

// partState is the state of a part.
type partState struct {
	progress stagein.Progress
	wasted   int64             // bytes of the source read by lost nodes
	lost     []metadata.NodeID // nodes that were lost while they read the part
	pieces   []stagein.Piece   // pieces of members that several nodes read
	kept     []stagein.Try     // earlier tries and their recorded inodes
	fetched  bool              // its records are on this node
}

func (c *Coordinator) taskID(p stagein.Part) string {
	return "in-" + strconv.Itoa(int(c.ds.ID)) + "-" + strconv.Itoa(int(p.Index)) + "-" + strconv.Itoa(int(p.Try))
}

// currentPlan returns the current plan. A change replaces the plan and never modifies it.
func (c *Coordinator) currentPlan() *stagein.Plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plan
}

// pieces returns the pieces of all parts.
func (c *Coordinator) pieces() (all []stagein.Piece) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.parts {
		all = append(all, c.parts[i].pieces...)
	}
	return all
}

// kept returns the kept tries of all parts.
func (c *Coordinator) kept() (all []stagein.Try) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.parts {
		all = append(all, c.parts[i].kept...)
	}
	return all
}

// runParts runs every part on its node, and fetches its records. The first failure stops the others.
func (c *Coordinator) runParts(ctx context.Context) error {
	n := len(c.currentPlan().Parts)
	g, ctx := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { c.updateStandbys(running) })
	defer wg.Wait()
	defer stop()
	for i := range n {
		g.Go(func() error { return c.runPart(ctx, i) })
	}
	return g.Wait()
}

// updateStandbys regularly sends the standbys the number of bytes read: if reading nodes are lost together with this
// one, no other node knows it.
func (c *Coordinator) updateStandbys(ctx context.Context) {
	var was int64
	for node.Pause(ctx, 4*c.s.cfg.Report) == nil {
		p, _ := c.progress()
		if p.SourceBytes == was {
			continue
		}
		was = p.SourceBytes
		if err := c.replicateState(ctx); err != nil {
			c.log().WithError(err).Debug("standby not updated: bytes read may be undercounted after a takeover")
		}
	}
}

func (c *Coordinator) initPartsLocked(n int) {
	c.parts, c.boundaries, c.arrived = make([]partState, n), make(map[int]ingest.Boundary), make(chan struct{})
}

// runPart runs a part to its end. It repeats the part on another node if its node is lost, and on the same node if the
// daemon restarts. Data that other nodes have read stays.
func (c *Coordinator) runPart(ctx context.Context, i int) error {
	if c.isFetched(i) {
		return nil
	}
	hosts := c.s.cfg.Job.Hosts
	for begun := c.resumed; ; begun = false { // started by the coordinator of an earlier attempt
		p := c.currentPlan().Parts[i]
		err := c.try(ctx, i, begun)
		if err == nil {
			return c.setFetched(i)
		}
		err = fmt.Errorf("%s: %w", hosts[p.Node], err)
		lost := errors.Is(err, tasks.ErrNodeLost) || errors.Is(err, tasks.ErrRestarted)
		if !lost || p.Try+1 >= maxTries || ctx.Err() != nil {
			return err
		}
		id, ok := c.nextNode(i, p, errors.Is(err, tasks.ErrNodeLost))
		if !ok {
			return err
		}
		c.log().WithError(err).WithFields(map[string]any{"part": i, "now": hosts[id]}).Warn("part of a stage-in lost: reading it again")
		c.restartPart(i, id)
		if plan := c.currentPlan(); plan.WholeArchives() && (id != p.Node || !plan.Checkpoints()) {
			c.s.excludeTries(ctx, plan, i, nil) // the next try starts again and needs the room
		}
		if err := c.replicate(ctx); err != nil {
			return err
		}
	}
}

func (c *Coordinator) isFetched(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.parts[i].fetched
}

func (c *Coordinator) setFetched(i int) error {
	c.mu.Lock()
	c.parts[i].fetched = true
	c.mu.Unlock()
	return c.save()
}

// nextNode returns the node for the next try of a part: the same node unless it is gone, otherwise a node that was not
// lost while reading this part before.
func (c *Coordinator) nextNode(i int, p stagein.Part, gone bool) (metadata.NodeID, bool) {
	if !gone {
		return p.Node, true
	}
	up := c.s.cfg.Node.View().Map.Up()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts[i].lost = append(c.parts[i].lost, p.Node)
	up = slices.DeleteFunc(up, func(id metadata.NodeID) bool { return slices.Contains(c.parts[i].lost, id) })
	if len(up) == 0 {
		return 0, false
	}
	return up[(i+int(p.Try))%len(up)], true
}

// restartPart plans the next try of a part on node id.
func (c *Coordinator) restartPart(i int, id metadata.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := c.plan.Parts[i].Node
	c.plan = c.plan.Retry(i, id)
	x := &c.parts[i]
	was := x.progress.SourceBytes
	x.progress = stagein.Progress{}
	if id == from {
		x.progress.SourceBytes = was // the node continues from its last mark
	} else {
		x.wasted += was
	}
	c.sumLocked()
}

// sumLocked sums up the progress of the parts.
func (c *Coordinator) sumLocked() {
	all := make([]stagein.Progress, len(c.parts))
	for i := range c.parts {
		all[i] = c.parts[i].progress
		all[i].SourceBytes += c.parts[i].wasted
		all[i].Again += int64(c.plan.Parts[i].Try)
	}
	c.sum = stagein.Sum(all)
}

// try runs one try of a part to its end. begun says that the task may run already.
func (c *Coordinator) try(ctx context.Context, i int, begun bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	plan := c.currentPlan()
	p := plan.Parts[i]
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.sendBoundary(ctx, p); err != nil && !tasks.MayLag(err) {
			cancel(err) // a part does not end without its boundary
		}
	})
	err := c.readPart(ctx, plan, i, begun)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	wg.Wait()
	return err
}

// readPart has the node of a part read it, and fetches its records.
func (c *Coordinator) readPart(ctx context.Context, plan *stagein.Plan, i int, begun bool) error {
	p := plan.Parts[i]
	q, err := tasks.NewRequest(c.taskID(p), kindPart, partRequest{Plan: plan, Part: i})
	if err == nil && !begun {
		err = c.s.cfg.Tasks.Start(ctx, p.Node, q)
	}
	if err == nil {
		lacks := func() bool { return c.lacksBoundary(i + 1) }
		err = c.s.cfg.Tasks.Watch(ctx, p.Node, q.ID, lacks, func(s tasks.State) { c.see(i, s) })
	}
	names := []string{dataset.RecordsFile(i)}
	if c.req.OnError == stagein.OnErrorSkip {
		names = append(names, dataset.SkipsFile(i))
	}
	for _, name := range names {
		if err == nil {
			err = c.fetch(ctx, p.Node, name)
		}
	}
	if n, _ := c.s.cfg.Node.View().Map.Node(p.Node); err != nil && node.Unreachable(err) && !node.Serving(n) {
		err = fmt.Errorf("%w: %w", tasks.ErrNodeLost, err)
	}
	return err
}

// see records the answer to a poll of a part.
func (c *Coordinator) see(i int, t tasks.State) {
	var r partReport
	if _, err := t.Decode(&r); err != nil {
		c.log().WithError(err).Warn("progress report of a part is damaged: ignored, the next one counts")
		return
	}
	c.mu.Lock()
	x := &c.parts[i]
	r.Progress.SourceBytes = max(r.Progress.SourceBytes, x.progress.SourceBytes) // the node counts from its last mark
	x.progress, x.pieces, x.kept = r.Progress, r.Pieces, r.Kept
	c.sumLocked()
	c.mu.Unlock()
	if r.Boundary != nil {
		if err := c.keepBoundary(i+1, *r.Boundary); err != nil {
			c.log().WithError(err).Warn("end of a part that does not exist was reported: ignored")
		}
	}
}

// fetch fetches a file that a part has written.
func (c *Coordinator) fetch(ctx context.Context, id metadata.NodeID, name string) error {
	s := c.s
	if id == s.cfg.Node.Self() {
		return nil
	}
	return s.cfg.Node.Insist(ctx, id, s.cfg.Patience, node.Unreachable, func() error {
		return s.cfg.Data.Files.Fetch(ctx, id, c.ds.ID, name, c.partPath(id, name))
	})
}

// partPath returns the path of a file written by a part on node id. Fetched files are in the attempt's directory.
func (c *Coordinator) partPath(id metadata.NodeID, name string) string {
	if id == c.s.cfg.Node.Self() && !c.scanned {
		return c.s.cfg.Data.Files.Path(c.ds.ID, name)
	}
	return c.path(name)
}

// lacksBoundary reports whether the beginning of a part is not known yet. An earlier coordinator may have received it
// and been lost.
func (c *Coordinator) lacksBoundary(part int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.boundaries[part]
	return part < len(c.parts) && !known
}

// keepBoundary records where a part begins. If the part before it is read again, it reports the same boundary.
func (c *Coordinator) keepBoundary(part int, b ingest.Boundary) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parts == nil {
		return fmt.Errorf("boundary of part %d, which has no reader yet: %w", part, syscall.ESTALE)
	}
	if part <= 0 || part >= len(c.parts) {
		return fmt.Errorf("boundary of part %d of %d: %w", part, len(c.parts), syscall.EINVAL)
	}
	if _, again := c.boundaries[part]; !again {
		c.boundaries[part] = b
		close(c.arrived)
		c.arrived = make(chan struct{})
	}
	return nil
}

// sendBoundary sends the beginning of a part to its node as soon as it is known.
func (c *Coordinator) sendBoundary(ctx context.Context, p stagein.Part) error {
	n := c.s.cfg.Node
	for {
		c.mu.Lock()
		b, ok := c.boundaries[int(p.Index)]
		arrived := c.arrived
		c.mu.Unlock()
		if ok {
			q := boundaryRequest{Dataset: c.ds.ID, Part: int(p.Index), Boundary: b, ToReader: true}
			retry := func(err error) bool { return tasks.MayLag(err) || errors.Is(err, syscall.EBUSY) }
			return n.Insist(ctx, p.Node, registryTime, retry, func() error {
				return n.Call(ctx, p.Node, wire.OpStageBoundary, q, nil)
			})
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
