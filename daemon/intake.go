package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
	"github.com/bivouacfs/bivouac/stagein"
)

// pollEvery is the pause between two looks at the shares of a stage-in.
const pollEvery = 100 * time.Millisecond

// intake is a stage-in that this node coordinates.
type intake struct {
	d    *Daemon
	ds   cluster.Dataset
	req  stagein.Request
	plan *stagein.Plan // of which the parts change while they are read: planNow

	over   context.Context // ends when another has begun the stage-in anew
	end    context.CancelFunc
	before int64        // bytes of the source that earlier turns have read
	scans  atomic.Int64 // bytes that the scan has read so far
	taken  bool         // it goes on where another run, or another node, has left it
	// scanned is that what is in the source was found without reading it.
	scanned bool
	keep    keeping

	mu    sync.Mutex
	now   statusReply // guarded by mu; the sum over the nodes
	parts []partState // guarded by mu; as those of plan
	// seams is what the regions before have told, by the part that it is for.
	seams map[int]stagein.Seam // guarded by mu
	told  chan struct{}        // guarded by mu; closed when there is one more
}

func (in *intake) status() statusReply {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.now
}

// StageIn brings a dataset in and returns when its manifest is agreed on; the
// registry tells everyone how it ended. This node coordinates: all nodes read.
func (d *Daemon) StageIn(ctx context.Context, s job.Dataset) error {
	in, err := d.register(ctx, s)
	if err != nil {
		return err
	}
	return in.finish(ctx, in.run(ctx))
}

// register enters the dataset in the registry, or refuses it.
func (d *Daemon) register(ctx context.Context, s job.Dataset) (*intake, error) {
	req := s.Request(d.job.Seed)
	if err := req.Validate(); err != nil {
		return nil, err
	}
	spec, err := specText(s)
	if err != nil {
		return nil, err
	}
	ds := cluster.Dataset{
		Name: s.Name, Source: s.Source, Coordinator: d.job.Self, Phase: cluster.Staging, Started: now(), Spec: spec,
	}
	defer d.stage.ask(s.Name)()
	// Who asked may go away; what was proposed may come to pass all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), registryTime)
	defer cancel()
	v, err := d.Propose(ctx, raftstore.Command{Kind: raftstore.KindAddDataset, Dataset: ds})
	taken := errors.Is(err, syscall.EEXIST)
	if taken {
		v = d.viewWith(ctx, s.Name)
	} else if err != nil {
		return nil, fmt.Errorf("stage-in of %s: %w", s.Source, err)
	}
	// A proposal whose answer was lost was made again: then it is there
	// already, and it is this one.
	found, ok := active(v, s.Name)
	if !ok || found.Coordinator != ds.Coordinator || found.Started != ds.Started {
		return nil, fmt.Errorf("stage-in of %s: a dataset named %q is there already: give another name as SRC:NAME: %w", s.Source, s.Name, syscall.EEXIST)
	}
	in := d.newIntake(found, req)
	d.stage.lead(in)
	return in, nil
}

func (d *Daemon) newIntake(ds cluster.Dataset, req stagein.Request) *intake {
	in := &intake{d: d, ds: ds, req: req, before: ds.SourceBytes}
	in.over, in.end = context.WithCancel(context.Background())
	in.keep.slot = make(chan struct{}, 1) // as many as may write at a time
	return in
}

// registryTime is how long a stage-in waits for the registry to take note of it.
const registryTime = 30 * time.Second

// active is the dataset name that has not failed.
func active(v cluster.View, name string) (cluster.Dataset, bool) {
	for _, ds := range v.Datasets {
		if ds.Name == name && ds.Phase != cluster.Failed {
			return ds, true
		}
	}
	return cluster.Dataset{}, false
}

// viewWith is the view once it has the dataset name, which is agreed on.
func (d *Daemon) viewWith(ctx context.Context, name string) cluster.View {
	d.Nudge()
	_ = d.Until(ctx, func(v cluster.View) bool { // without it, the caller finds nothing
		_, ok := active(v, name)
		return ok
	})
	return d.View()
}

// finish records how the stage-in ended.
func (in *intake) finish(ctx context.Context, err error) error {
	if in.over.Err() != nil {
		return in.giveWay()
	}
	ds := in.ds
	if err != nil {
		if ds.Reading && in.stillLeads() {
			in.abort()
		}
		ds.Phase, ds.Error = cluster.Failed, node.Clip(node.ErrorText(err))
	} else {
		in.bequeath(ctx)
		ds.Phase = cluster.Publishing
	}
	// The job's end must not leave the registry believing in a stage-in.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), registryTime)
	defer cancel()
	_, e := in.d.Propose(ctx, raftstore.Command{Kind: raftstore.KindSetDataset, Dataset: ds})
	if errors.Is(e, syscall.ESTALE) {
		return in.giveWay()
	}
	if e != nil {
		in.d.stage.unlead(in) // so that this node says it has failed when it can
		in.d.Nudge()
	}
	if err == nil {
		err = e
	}
	return err
}

func (in *intake) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(in.over, cancel)()
	select {
	case in.d.stage.slots <- struct{}{}:
		release := sync.OnceFunc(func() { <-in.d.stage.slots })
		defer release()
		defer context.AfterFunc(in.over, release)() // its source may be stuck: nobody waits for it
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := in.begin(); err != nil {
		return err
	}
	if !in.taken {
		if err := in.look(ctx); err != nil {
			return err
		}
	}
	if in.scanned {
		return in.build(ctx)
	}
	return in.pass(ctx)
}

// look finds what is in the source, or plans how it is read to be known.
func (in *intake) look(ctx context.Context) error {
	cfg := in.planConfig()
	if err := in.scan(ctx, cfg); err != nil || in.scanned {
		return err
	}
	plan, err := in.makePlan(ctx, cfg)
	if err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.plan = plan
	in.now.Total = plan.Size
	in.initParts(len(plan.Parts))
	return nil
}

// pass has the nodes read the source, and makes the manifest of what they found.
func (in *intake) pass(ctx context.Context) error {
	if err := in.entrust(ctx); err != nil {
		return err
	}
	if err := in.reading(ctx); err != nil {
		return err
	}
	if err := in.shares(ctx); err != nil {
		return err
	}
	if err := in.gatherRestartPoints(); err != nil {
		return err
	}
	in.plan.Origins.Void = in.plan.Void(in.kept())
	if err := in.keepOrigins(in.plan.Origins); err != nil {
		return err
	}
	return in.build(ctx)
}

// gatherRestartPoints takes over the restart points that the parts have found in compressed tars.
func (in *intake) gatherRestartPoints() error {
	if !in.plan.WholeArchives() {
		return nil
	}
	for i := range in.plan.Parts {
		all, err := readRestartPoints(in.brings(in.plan.Parts[i].Node, pointsFile(i)))
		for _, p := range all {
			err = errors.Join(err, in.plan.Origins.SetRestartPoints(p.Source, p.Points))
		}
		if err != nil {
			return fmt.Errorf("stage-in: %w", err)
		}
	}
	return nil
}

func (in *intake) planConfig() *stagein.PlanConfig {
	d := in.d
	return &stagein.PlanConfig{
		FS: d.cfg.Source, Request: in.req,
		Dataset: in.ds.ID, Map: d.View().Map, UID: d.job.UID, GID: d.job.GID,
		Others: d.lookers(in.ds.ID), Free: d.freeSpace(), Log: d.log.WithField("dataset", in.ds.Name), Scratch: d.scratch(in.ds.ID),
	}
}

func (in *intake) makePlan(ctx context.Context, cfg *stagein.PlanConfig) (*stagein.Plan, error) {
	plan, err := stagein.MakePlan(ctx, cfg)
	if err != nil {
		return nil, err
	}
	for i := range plan.Parts {
		if !plan.Itemized() {
			continue
		}
		b, err := json.Marshal(plan.Parts[i])
		if err != nil {
			return nil, fmt.Errorf("stage-in: %w", err)
		}
		if err := os.WriteFile(filepath.Join(in.dir(), partFile(i)), b, 0o600); err != nil {
			return nil, fmt.Errorf("stage-in: %w", err)
		}
		if err := in.put(partFile(i)); err != nil {
			return nil, err
		}
		plan.Parts[i] = plan.Parts[i].Bare() // the node that needs the rest fetches it
	}
	return plan, nil
}

// freeSpace is what each node that serves has left, as far as this node knows.
func (d *Daemon) freeSpace() func(metadata.NodeID) (int64, bool) {
	ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
	defer cancel()
	var mu sync.Mutex
	free := make(map[metadata.NodeID]int64) // guarded by mu
	var g errgroup.Group
	g.SetLimit(32)
	for _, id := range node.Participants(d.View().Map) {
		g.Go(func() error {
			if s, err := (target{d: d}).store(id).Space(ctx); err == nil {
				mu.Lock()
				free[id] = s.Free
				mu.Unlock()
			}
			return nil // whoever does not answer is not known
		})
	}
	_ = g.Wait() // no function fails
	return func(id metadata.NodeID) (int64, bool) { f, ok := free[id]; return f, ok }
}

// abort stops every share, and when none runs any more has every node drop what
// it stored: a share may still write to another node while it stops.
func (in *intake) abort() {
	for _, q := range []abortReq{{Dataset: in.ds.ID}, {Dataset: in.ds.ID, Drop: true}} {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(in.d.ctx), 20*time.Second)
		var g errgroup.Group
		for _, id := range node.Participants(in.d.View().Map) {
			g.Go(func() error { return in.d.Call(ctx, id, wire.OpStageAbort, q, nil) })
		}
		if err := g.Wait(); err != nil {
			in.d.log.WithError(err).WithField("dataset", in.ds.Name).Warn("clean-up after a failed stage-in")
		}
		cancel()
	}
}

// build makes the manifest of what the shares recorded.
func (in *intake) build(ctx context.Context) error {
	var readers []*manifest.Reader
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close() // read only
		}
	}()
	sums, err := stagein.JoinPieces(in.pieces())
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	for i := range in.plan.Parts { // whose records have been brought here
		f, err := os.Open(in.brings(in.plan.Parts[i].Node, recordsFile(i)))
		if err != nil {
			return fmt.Errorf("manifest: %w", err)
		}
		files = append(files, f)
		r := manifest.NewReader(f)
		r.Sums = sums
		readers = append(readers, r)
	}
	skips, err := in.beginSkips(ctx)
	if err != nil {
		return err
	}
	sum, err := in.write(readers, skips, filepath.Join(in.dir(), manifestFile))
	names := []string{manifestFile}
	if skips != nil {
		names = append(names, allSkips)
	}
	if err = errors.Join(err, skips.end()); err == nil {
		err = in.put(names...)
	}
	if err != nil {
		return err
	}
	in.ds.Digest, in.ds.Files, in.ds.Dirs, in.ds.Bytes = sum.Digest, sum.Files, sum.Dirs, sum.Bytes
	in.ds.SourceSize = in.plan.Size
	in.ds.SourceBytes = in.before + in.status().Progress.SourceBytes
	return nil
}

func (in *intake) write(parts []*manifest.Reader, skips *skipList, path string) (manifest.Summary, error) {
	f, err := os.Create(path)
	if err != nil {
		return manifest.Summary{}, fmt.Errorf("manifest: %w", err)
	}
	t := now()
	root := metadata.Attr{Mode: dirMode | 0o755, UID: in.d.job.UID, GID: in.d.job.GID, Atime: t, Mtime: t, Ctime: t}
	cfg := manifest.BuildConfig{Dataset: in.ds.ID, Root: root, Scratch: in.d.scratch(in.ds.ID)}
	if skips != nil {
		cfg.Leave = skips.leave
	}
	sum, err := manifest.Build(cfg, parts, f)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return sum, fmt.Errorf("manifest of %s: %w%s", in.ds.Source, err, in.treeAdvice(err))
	}
	return sum, nil
}

// treeAdvice is what can be done about what does not make a tree.
func (in *intake) treeAdvice(err error) string {
	out := ": leave it out by exclude= or on-error=skip"
	if in.req.Unpack == stagein.UnpackNested {
		out = ": leave it out by exclude="
	}
	is := func(no syscall.Errno) bool { return errors.Is(err, no) }
	switch {
	case is(syscall.EEXIST):
		return out + ", or if archives have names in common, keep them apart by unpack=apart"
	case slices.ContainsFunc([]syscall.Errno{syscall.ENOTDIR, syscall.ENOENT, syscall.EPERM, syscall.ELOOP}, is):
		return out
	}
	return ""
}

// dirMode is S_IFDIR.
const dirMode = 0o040000
