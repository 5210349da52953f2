package ingest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/ingest"
)

// participant reads this node's part of a single pass.
type participant struct {
	s        *Stager
	plan     *stagein.Plan
	part     int
	from     metadata.NodeID // the coordinator that started it
	share    atomic.Pointer[ingest.Share]
	boundary atomic.Pointer[ingest.Boundary] // where the next part begins
	over     atomic.Bool
}

// report returns the answer to a poll.
func (p *participant) report(full bool) any {
	var r partReport
	x := p.share.Load()
	if x != nil {
		r.Progress = x.Progress()
	}
	if x != nil && p.over.Load() {
		r.Pieces, r.Kept = x.Pieces(), x.Kept()
	}
	if full {
		r.Boundary = p.boundary.Load()
	}
	return r
}

func (p *participant) log() *logrus.Entry {
	return p.s.cfg.Node.Log().WithField("dataset", p.plan.Name)
}

// path returns the path of a file in the directory of the dataset.
func (p *participant) path(name string) string {
	return p.s.cfg.Data.Files.Path(p.plan.Dataset, name)
}

// tryFile returns the path of the file with a try's records while they are incomplete.
func (p *participant) tryFile(try uint16) string {
	return p.path(dataset.RecordsFile(p.part)) + ".try-" + strconv.Itoa(int(try))
}

func (p *participant) run(ctx context.Context) error {
	defer p.over.Store(true)
	// A daemon that has just restarted may know no node that is up. It would take all nodes for lost, and drop the
	// files that belong on them.
	if err := p.s.cfg.Node.Until(ctx, func(v cluster.View) bool { return v.Map.Epoch >= p.plan.Map.Epoch }); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(p.path(dataset.Manifest)), 0o700); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	part := p.plan.Parts[p.part]
	if p.plan.Itemized() {
		if err := p.fetchItems(ctx, &part); err != nil {
			return err
		}
	}
	f, err := os.Create(p.tryFile(part.Try))
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	skips, err := os.Create(p.path(dataset.SkipsFile(p.part)))
	if err != nil {
		return errors.Join(fmt.Errorf("stage-in: %w", err), f.Close())
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = p.stage(ctx, part, w, skips)
	if err == nil {
		err = w.Flush()
	}
	for _, f := range []*os.File{f, skips} {
		err = cmp.Or(err, f.Close())
	}
	if err == nil {
		err = os.Rename(p.tryFile(part.Try), p.path(dataset.RecordsFile(p.part)))
	}
	return err
}

func (p *participant) stage(ctx context.Context, part stagein.Part, w, skips io.Writer) error {
	s := p.s
	was := p.lastTry(part)
	defer was.close()
	if p.plan.WholeArchives() && part.Try > 0 {
		s.excludeTries(ctx, p.plan, p.part, was.kept())
	}
	x, err := ingest.New(ingest.Config{
		Checkpointed: p.saveMark(part), Resume: was.mark, Before: was.records,
		Plan: p.plan, Part: part, FS: s.cfg.Source, Map: p.plan.Map, Target: s.cfg.Data.Stores.Since(p.plan.Map.Epoch),
		BoundaryIn: p.boundaryIn, BoundaryOut: p.boundaryOut, Records: w, Skipped: skips,
		Scratch: s.cfg.Data.Files.Scratch(p.plan.Dataset),
	})
	if err != nil {
		return err
	}
	p.share.Store(x)
	return x.Run(ctx)
}

// excludeTries has all nodes remove what earlier tries of a part have stored, except the kept inodes: the next try
// needs the room.
func (s *Stager) excludeTries(ctx context.Context, p *stagein.Plan, part int, kept []stagein.Try) {
	n := s.cfg.Node
	q := abortRequest{Dataset: p.Dataset, Exclude: p.VoidOf(part, kept)}
	var g errgroup.Group
	for _, id := range node.Participants(n.View().Map) {
		g.Go(func() error {
			return n.Insist(ctx, id, s.cfg.Patience, tasks.MayLag, func() error { return n.Call(ctx, id, wire.OpStageAbort, q, nil) })
		})
	}
	if err := g.Wait(); err != nil {
		n.Log().WithError(err).WithField("dataset", p.Name).Warn("objects of an earlier try not removed everywhere: the stage-in may run out of room")
	}
}

// fetchItems fetches the list of files of the part.
func (p *participant) fetchItems(ctx context.Context, part *stagein.Part) error {
	files, id, name := p.s.cfg.Data.Files, p.plan.Dataset, dataset.PartFile(p.part)
	if err := p.askCoordinator(ctx, func(c metadata.NodeID) error {
		if c == p.s.cfg.Node.Self() {
			return nil
		}
		return files.Fetch(ctx, c, id, name, files.Path(id, name))
	}); err != nil {
		return fmt.Errorf("stage-in: list of files: %w", err)
	}
	b, err := os.ReadFile(files.Path(id, name))
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	var got stagein.Part
	if err := node.DecodeJSON(b, &got); err != nil {
		return fmt.Errorf("stage-in: list of files: %w", err)
	}
	if got.Index != part.Index {
		return fmt.Errorf("stage-in: list of files of part %d, want %d: %w", got.Index, part.Index, syscall.EPROTO)
	}
	got.Node, got.Try = part.Node, part.Try
	*part = got
	return nil
}

// boundaryIn waits for the boundary where the part begins.
func (p *participant) boundaryIn(ctx context.Context) (ingest.Boundary, error) {
	c, err := p.s.mailbox(boundaryKey{p.plan.Dataset, p.part})
	if err != nil {
		return ingest.Boundary{}, err
	}
	select {
	case b := <-c:
		return b, nil
	case <-ctx.Done():
		return ingest.Boundary{}, ctx.Err()
	}
}

// boundaryOut reports the end of the part to the coordinator, which knows the reader of the next part even after a
// restart of that part. A later coordinator polls for it (partReport).
func (p *participant) boundaryOut(ctx context.Context, b ingest.Boundary) error {
	p.boundary.Store(&b)
	q := boundaryRequest{Dataset: p.plan.Dataset, Part: p.part + 1, Boundary: b}
	return p.askCoordinator(ctx, func(c metadata.NodeID) error { return p.s.cfg.Node.Call(ctx, c, wire.OpStageBoundary, q, nil) })
}

// askCoordinator calls the current coordinator, which may differ from the one that started the part. While there is
// none it waits: if the stage-in fails, ctx ends.
func (p *participant) askCoordinator(ctx context.Context, ask func(metadata.NodeID) error) error {
	for {
		c := p.from
		v, changed := p.s.cfg.Node.Watch()
		if ds, known := v.Dataset(p.plan.Dataset); known {
			c = ds.Coordinator
		}
		err := ask(c)
		if err == nil || !node.Unreachable(err) && !errors.Is(err, syscall.ESTALE) {
			return err
		}
		select {
		case <-changed:
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return err
		}
	}
}
