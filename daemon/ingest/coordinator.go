package ingest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/ingest"
)

// Coordinator is one attempt at a stage-in that this node coordinates.
type Coordinator struct {
	s    *Stager
	ds   cluster.Dataset
	req  stagein.Request
	plan *stagein.Plan // guarded by mu while parts are read: currentPlan

	superseded context.Context // ends when another attempt has begun
	supersede  context.CancelFunc
	before     int64 // bytes of the source read by earlier attempts
	resumed    bool  // the attempt continues from the state of an earlier one
	scanned    bool  // the source was scanned instead of read

	saving  chan struct{}     // a token for the goroutine that saves and replicates the state
	version int               // guarded by saving; of the state
	standby []metadata.NodeID // guarded by saving

	mu         sync.Mutex
	total      int64                   // guarded by mu; bytes of the source
	sum        stagein.Progress        // guarded by mu; over all parts
	parts      []partState             // guarded by mu; in the order of the plan
	boundaries map[int]ingest.Boundary // guarded by mu; by the part that begins there
	arrived    chan struct{}           // guarded by mu; closed when another boundary is known
}

func (s *Stager) newCoordinator(ds cluster.Dataset, req stagein.Request) *Coordinator {
	c := &Coordinator{s: s, ds: ds, req: req, before: ds.SourceBytes, saving: make(chan struct{}, 1)}
	c.superseded, c.supersede = context.WithCancel(context.Background())
	return c
}

// Dataset returns the dataset as this attempt has entered it in the registry.
func (c *Coordinator) Dataset() cluster.Dataset { return c.ds }

func (c *Coordinator) log() *logrus.Entry { return c.s.cfg.Node.Log().WithField("dataset", c.ds.Name) }

func (c *Coordinator) progress() (stagein.Progress, int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sum, c.total
}

// Start runs c in the background.
func (c *Coordinator) Start() {
	c.s.cfg.Node.Spawn(func(ctx context.Context) {
		switch err := c.Run(ctx); {
		case errors.Is(err, syscall.ECANCELED):
			c.log().WithError(err).Info("stage-in ended")
		case err != nil:
			c.log().WithError(err).Error("stage-in failed")
		}
	})
}

// Run stages the dataset in, and records the outcome in the registry.
func (c *Coordinator) Run(ctx context.Context) error { return c.finish(ctx, c.run(ctx)) }

func (c *Coordinator) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.superseded, cancel)()
	select {
	case c.s.slots <- struct{}{}:
		release := sync.OnceFunc(func() { <-c.s.slots })
		defer release()
		defer context.AfterFunc(c.superseded, release)() // does not wait for the source, which may hang
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := os.MkdirAll(c.dir(), 0o700); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	c.setPlan(ctx)
	if !c.resumed {
		if err := c.look(ctx); err != nil {
			return err
		}
	}
	if c.scanned {
		return c.build(ctx)
	}
	return c.singlePass(ctx)
}

// look scans the source, or plans a single pass if only a read shows what the source has.
func (c *Coordinator) look(ctx context.Context) error {
	cfg := c.planConfig()
	if err := c.scan(ctx, cfg); err != nil || c.scanned {
		return err
	}
	plan, err := c.makePlan(ctx, cfg)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plan, c.total = plan, plan.Size
	c.initPartsLocked(len(plan.Parts))
	return nil
}

// singlePass has the nodes read the source, and builds the manifest from their records.
func (c *Coordinator) singlePass(ctx context.Context) error {
	if err := c.replicate(ctx); err != nil {
		return err
	}
	if err := c.setReading(ctx); err != nil {
		return err
	}
	if err := c.runParts(ctx); err != nil {
		return err
	}
	c.plan.Origins.Void = c.plan.Void(c.kept())
	if err := c.keepOrigins(c.plan.Origins); err != nil {
		return err
	}
	return c.build(ctx)
}

// setReading records that the nodes now read files: from here on, the next attempt takes over instead of starting
// again.
func (c *Coordinator) setReading(ctx context.Context) error {
	c.ds.Reading = true
	return c.set(ctx, c.ds)
}

// set enters ds in the registry.
func (c *Coordinator) set(ctx context.Context, ds cluster.Dataset) error {
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	_, err := c.s.cfg.Node.Propose(ctx, raftstore.Command{Kind: raftstore.KindSetDataset, Dataset: ds})
	return err
}

// finish records the outcome of the stage-in.
func (c *Coordinator) finish(ctx context.Context, err error) error {
	if c.superseded.Err() != nil {
		return c.yield()
	}
	ds := c.ds
	if err != nil {
		if ds.Reading && c.stillCoordinates() {
			c.abort()
		}
		ds.Phase, ds.Error = cluster.Failed, node.Clip(node.ErrorText(err))
	} else {
		c.handOver(ctx)
		ds = c.ds
		ds.Phase = cluster.Publishing
	}
	// The registry must not list a running stage-in after the job's end.
	e := c.set(context.WithoutCancel(ctx), ds)
	if errors.Is(e, syscall.ESTALE) {
		return c.yield()
	}
	if e != nil {
		c.s.remove(c) // lets this node report the failure when it can
		c.s.cfg.Node.Nudge()
	}
	if err == nil {
		err = e
	}
	return err
}

// stillCoordinates reports whether this attempt is the newest, if the registry can be reached.
func (c *Coordinator) stillCoordinates() bool { return c.set(c.s.cfg.Ctx, c.ds) == nil }

// yield ends an attempt that was superseded. It may run late: by then this node may be a participant or a standby of
// the next attempt, or have the dataset. So it removes only the attempt's own directory.
func (c *Coordinator) yield() error {
	err := os.RemoveAll(c.dir())
	c.s.remove(c)
	c.s.cfg.Node.Nudge()
	if err != nil {
		return fmt.Errorf("stage-in of %s: %w", c.ds.Source, err)
	}
	if ds, _ := c.s.cfg.Node.View().Dataset(c.ds.ID); ds.Phase.Ended() {
		return fmt.Errorf("stage-in of %s: %s: %w", c.ds.Source, ds.Error, syscall.ECANCELED)
	}
	return fmt.Errorf("stage-in of %s: another node has taken over: %w", c.ds.Source, syscall.ECANCELED)
}

// abortTime bounds one step of the clean-up after a failure.
const abortTime = 20 * time.Second

// abort stops every part, and then has every node remove what it stored. The order matters, because a part may write to
// other nodes while it stops.
func (c *Coordinator) abort() {
	n := c.s.cfg.Node
	for _, q := range []abortRequest{{Dataset: c.ds.ID}, {Dataset: c.ds.ID, Drop: true}} {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.s.cfg.Ctx), abortTime)
		var g errgroup.Group
		for _, id := range node.Participants(n.View().Map) {
			g.Go(func() error { return n.Call(ctx, id, wire.OpStageAbort, q, nil) })
		}
		if err := g.Wait(); err != nil {
			c.log().WithError(err).Warn("clean-up after a failed stage-in is incomplete: a node's objects take space until it learns of the failure")
		}
		cancel()
	}
}

// attemptDir returns the directory in which this node works for an attempt. A late attempt, whose source hung while
// another one began, writes there and overwrites none of its successor's files on this node.
func (s *Stager) attemptDir(ds cluster.Dataset) string {
	return s.cfg.Data.Files.Path(ds.ID, fmt.Sprintf("attempt-%d", ds.Attempt))
}

func (c *Coordinator) dir() string { return c.s.attemptDir(c.ds) }

// put moves files of the attempt to the directory of the dataset, unless there is a later attempt.
func (c *Coordinator) put(names ...string) error {
	c.s.placeMu.Lock()
	defer c.s.placeMu.Unlock()
	if ds, known := c.s.cfg.Node.View().Dataset(c.ds.ID); known && ds.Attempt > c.ds.Attempt {
		return fmt.Errorf("stage-in of %s: attempt %d has begun, this is %d: %w", c.ds.Source, ds.Attempt, c.ds.Attempt, syscall.ESTALE)
	}
	for _, name := range names {
		if err := os.Rename(c.path(name), c.s.cfg.Data.Files.Path(c.ds.ID, name)); err != nil {
			return fmt.Errorf("stage-in: %w", err)
		}
	}
	return nil
}

// settle waits until no attempt older than the one that this node knows moves files to the dataset's directory any
// more.
func (s *Stager) settle() {
	s.placeMu.Lock()
	defer s.placeMu.Unlock()
}
