package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
)

// maxTries is how often a part of a stage-in is begun: nodes that are lost again and
// again have a cause.
const maxTries = 8

// partState is how far a part is.
type partState struct {
	progress stagein.Progress
	vain     int64             // bytes of the source that were read by nodes that were lost
	lost     []metadata.NodeID // they
	pieces   []stagein.Piece   // of members that were read by several nodes
	kept     []stagein.Try     // of tries before, what is recorded
	brought  bool              // what it recorded is here
}

func (in *intake) task(p stagein.Part) string {
	return "in-" + strconv.Itoa(int(in.ds.ID)) + "-" + strconv.Itoa(int(p.Index)) + "-" + strconv.Itoa(int(p.Try))
}

// planNow is the plan as it is now. It is not changed.
func (in *intake) planNow() *stagein.Plan {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.plan
}

// pieces is those of all parts.
func (in *intake) pieces() (all []stagein.Piece) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for i := range in.parts {
		all = append(all, in.parts[i].pieces...)
	}
	return all
}

// kept is those of all parts.
func (in *intake) kept() (all []stagein.Try) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for i := range in.parts {
		all = append(all, in.parts[i].kept...)
	}
	return all
}

// shares runs every part on its node, and brings what it recorded here. The first
// failure ends the others.
func (in *intake) shares(ctx context.Context) error {
	n := len(in.planNow().Parts)
	g, ctx := errgroup.WithContext(ctx)
	told, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { in.tellHeirs(told) })
	defer wg.Wait()
	defer stop()
	for i := range n {
		g.Go(func() error { return in.share(ctx, i) })
	}
	return g.Wait()
}

// tellHeirs has the heirs know, now and then, how much was read: of nodes that are lost
// together with this one, nobody else could say it.
func (in *intake) tellHeirs(ctx context.Context) {
	var was int64
	for node.Pause(ctx, 4*in.d.cfg.Timing.Report) == nil {
		now := in.status().Progress.SourceBytes
		if now == was {
			continue
		}
		was = now
		if err := in.remind(ctx); err != nil {
			in.d.log.WithError(err).WithField("dataset", in.ds.Name).Debug("if this node were lost, less would be counted than was read")
		}
	}
}

// initParts is for a plan of n parts; in.mu is held.
func (in *intake) initParts(n int) {
	in.parts, in.seams, in.told = make([]partState, n), make(map[int]stagein.Seam), make(chan struct{})
}

// share runs a part: again if its node is lost, by another one, or if its daemon has
// started again. What other nodes have read stays.
func (in *intake) share(ctx context.Context, i int) error {
	if in.brought(i) {
		return nil
	}
	for begun := in.taken; ; begun = false { // by who led before, then
		p := in.planNow().Parts[i]
		err := in.try(ctx, i, begun)
		if err == nil {
			return in.bringDone(i)
		}
		err = fmt.Errorf("%s: %w", in.d.job.Hosts[p.Node], err)
		lost := errors.Is(err, tasks.ErrNodeLost) || errors.Is(err, tasks.ErrRestarted)
		if !lost || p.Try+1 >= maxTries || ctx.Err() != nil {
			return err
		}
		node, ok := in.next(i, p, errors.Is(err, tasks.ErrNodeLost))
		if !ok {
			return err
		}
		in.d.log.WithError(err).WithFields(map[string]any{"dataset": in.ds.Name, "part": i, "now": in.d.job.Hosts[node]}).
			Warn("a part of a stage-in is read again")
		in.again(i, node)
		if plan := in.planNow(); plan.WholeArchives() && (node != p.Node || !plan.Marks()) {
			in.d.dropTries(ctx, plan, i, nil) // the next attempt begins anew and needs their room
		}
		if err := in.entrust(ctx); err != nil {
			return err
		}
	}
}

// brought reports whether what a part recorded is here.
func (in *intake) brought(i int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.parts[i].brought
}

// bringDone takes note that what a part recorded is here.
func (in *intake) bringDone(i int) error {
	in.mu.Lock()
	in.parts[i].brought = true
	in.mu.Unlock()
	return in.save()
}

// next is the node that reads a part again: the same one, unless that was given up;
// then one that was not lost with it before.
func (in *intake) next(i int, p stagein.Part, gone bool) (metadata.NodeID, bool) {
	if !gone {
		return p.Node, true
	}
	up := in.d.View().Map.Up()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.parts[i].lost = append(in.parts[i].lost, p.Node)
	up = slices.DeleteFunc(up, func(id metadata.NodeID) bool { return slices.Contains(in.parts[i].lost, id) })
	if len(up) == 0 {
		return 0, false
	}
	return up[(i+int(p.Try))%len(up)], true
}

// again takes note that a part is begun again.
func (in *intake) again(i int, node metadata.NodeID) {
	in.mu.Lock()
	defer in.mu.Unlock()
	from := in.plan.Parts[i].Node
	in.plan = in.plan.Again(i, node)
	x := &in.parts[i]
	was := x.progress.SourceBytes
	x.progress = stagein.Progress{}
	if node == from {
		x.progress.SourceBytes = was // the next try on a node says what those before it have read
	} else {
		x.vain += was
	}
	in.sumLocked()
}

// sumLocked sums up the parts; in.mu is held.
func (in *intake) sumLocked() {
	all := make([]stagein.Progress, len(in.parts))
	for i := range in.parts {
		all[i] = in.parts[i].progress
		all[i].SourceBytes += in.parts[i].vain
		all[i].Again += int64(in.plan.Parts[i].Try)
	}
	in.now.Progress = stagein.Sum(all)
}

// try has a part read once, to the end. It may have begun already.
func (in *intake) try(ctx context.Context, i int, begun bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	plan := in.planNow()
	p := plan.Parts[i]
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := in.passSeam(ctx, p); err != nil && !tasks.MayLag(err) {
			cancel(err) // without its seam a share does not end
		}
	})
	err := in.read(ctx, plan, i, begun)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	wg.Wait()
	return err
}

// read has the node of a part read it, and brings what that has recorded.
func (in *intake) read(ctx context.Context, plan *stagein.Plan, i int, begun bool) error {
	p := plan.Parts[i]
	q, err := tasks.NewRequest(in.task(p), kindPart, partRequest{Plan: plan, Part: i})
	if err == nil && !begun {
		err = in.d.tasks.Start(ctx, p.Node, q)
	}
	if err == nil {
		err = in.d.tasks.Watch(ctx, p.Node, q.ID, func() bool { return in.lacksSeam(i + 1) }, func(s tasks.State) { in.see(i, s) })
	}
	if err == nil {
		err = in.bring(ctx, p.Node, recordsFile(i))
	}
	if err == nil && in.req.OnError == stagein.OnErrorSkip {
		err = in.bring(ctx, p.Node, skipsFile(i))
	}
	if err == nil && plan.WholeArchives() {
		err = in.bring(ctx, p.Node, pointsFile(i))
	}
	if n, _ := in.d.View().Map.Node(p.Node); err != nil && node.Unreachable(err) && !node.Serving(n) {
		err = fmt.Errorf("%w: %w", tasks.ErrNodeLost, err)
	}
	return err
}

// see takes note of how a part fares.
func (in *intake) see(i int, t tasks.State) {
	var s partReport
	if _, err := t.Decode(&s); err != nil {
		in.d.log.WithError(err).WithField("dataset", in.ds.Name).Warn("report of a part cannot be read")
		return
	}
	in.mu.Lock()
	x := &in.parts[i]
	s.Progress.SourceBytes = max(s.Progress.SourceBytes, x.progress.SourceBytes) // what a node keeps of it lags
	x.progress, x.pieces, x.kept = s.Progress, s.Pieces, s.Kept
	in.sumLocked()
	in.mu.Unlock()
	if s.Seam != nil {
		if err := in.keepSeam(i+1, *s.Seam); err != nil {
			in.d.log.WithError(err).WithField("dataset", in.ds.Name).Warn("a seam that cannot be")
		}
	}
}

// lacksSeam reports whether nobody has told the seam of a part yet: the node that led
// the stage-in may have been told, and is gone.
func (in *intake) lacksSeam(part int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	_, known := in.seams[part]
	return part < len(in.parts) && !known
}

// bring fetches a file that a share has written.
func (in *intake) bring(ctx context.Context, id metadata.NodeID, name string) error {
	d := in.d
	if id == d.job.Self {
		return nil
	}
	return d.Insist(ctx, id, 2*d.cfg.Timing.Down, node.Unreachable, func() error {
		return d.fetch(ctx, id, blobReq{Dataset: in.ds.ID, Name: name}, in.brings(id, name))
	})
}

// keepSeam takes note of a seam. A region that was read again has the same.
func (in *intake) keepSeam(part int, s stagein.Seam) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.parts == nil {
		return fmt.Errorf("seam of part %d, which nobody reads yet: %w", part, syscall.ESTALE)
	}
	if part <= 0 || part >= len(in.parts) {
		return fmt.Errorf("seam of part %d of %d: %w", part, len(in.parts), syscall.EINVAL)
	}
	if _, again := in.seams[part]; !again {
		in.seams[part] = s
		close(in.told)
		in.told = make(chan struct{})
	}
	return nil
}

// passSeam tells the node that reads a part the seam that it begins with, when that
// is known.
func (in *intake) passSeam(ctx context.Context, p stagein.Part) error {
	for {
		in.mu.Lock()
		s, ok := in.seams[int(p.Index)]
		told := in.told
		in.mu.Unlock()
		if ok {
			q := seamReq{Dataset: in.ds.ID, Part: int(p.Index), Seam: s, Passed: true}
			mayPass := func(err error) bool { return tasks.MayLag(err) || errors.Is(err, syscall.EBUSY) }
			return in.d.Insist(ctx, p.Node, registryTime, mayPass, func() error {
				return in.d.Call(ctx, p.Node, wire.OpStageBoundary, q, nil)
			})
		}
		select {
		case <-told:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
