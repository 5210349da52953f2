package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/ingest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

const (
	// maxCoordinated bounds the concurrent stage-ins that a node coordinates: each has buffers on every node.
	maxCoordinated = 4
	// maxBoundaries bounds the boundaries, of up to 2 MiB each, that wait for their part.
	maxBoundaries = 256
	// registryTime is how long a stage-in waits for the registry.
	registryTime = 30 * time.Second
	// proposeTime is how long one proposal of the follower may take.
	proposeTime = 5 * time.Second
	// pollEvery is the pause between two calls to a coordinator that does not answer.
	pollEvery = 100 * time.Millisecond
	// MaxSpec bounds a stage-in's request in the registry, in bytes. A longer request is not kept: the user must repeat
	// the stage-in if its coordinator is lost during the scan.
	MaxSpec = 32 << 10
)

// Config configures a Stager.
type Config struct {
	Ctx    context.Context // ends when the daemon stops
	Node   node.Node
	Tasks  *tasks.Runner
	Job    *job.File
	Data   *dataset.Datasets
	Source source.FS
	// SetPlan makes a plan the access plan of its dataset; nil: plans are not set.
	SetPlan  func(context.Context, accessplan.Plan) (digest string, err error)
	Report   time.Duration // between two reports of a node
	Patience time.Duration // how long calls to a silent node are repeated
}

// boundaryKey identifies a part of a dataset.
type boundaryKey struct {
	ds   metadata.DatasetID
	part int
}

// Stager holds the stage-ins of this node: those that it coordinates, and those in which it participates.
type Stager struct {
	cfg   Config
	slots chan struct{} // one token for each stage-in that this node coordinates now

	placeMu sync.Mutex // held while an attempt puts files in place

	mu           sync.Mutex
	coordinators map[metadata.DatasetID]*Coordinator  // guarded by mu
	boundaries   map[boundaryKey]chan ingest.Boundary // guarded by mu; one value each, which may arrive before its part
	proposed     map[string]int                       // guarded by mu; registrations in progress, by name
}

var _ dataset.Stager = (*Stager)(nil)

// New returns a Stager and registers its tasks.
func New(cfg Config) *Stager {
	s := &Stager{
		cfg: cfg, slots: make(chan struct{}, maxCoordinated),
		coordinators: make(map[metadata.DatasetID]*Coordinator), boundaries: make(map[boundaryKey]chan ingest.Boundary),
		proposed: make(map[string]int),
	}
	cfg.Tasks.Register(kindPart, tasks.KindOf(s.preparePart))
	cfg.Data.Follower.SetStager(s)
	return s
}

// Handlers returns the handlers for calls from other nodes.
func (s *Stager) Handlers() node.Handlers {
	return node.Handlers{
		wire.OpStageAbort:       node.HandleJSON(s.onAbort),
		wire.OpStageBoundary:    node.HandleJSON(s.onBoundary),
		wire.OpStandbyReplicate: node.HandleJSON(s.onReplicate),
		wire.OpScan:             node.HandleJSON(s.onScan),
	}
}

// Begin enters a dataset in the registry, or refuses it. The caller must then call Run.
func (s *Stager) Begin(ctx context.Context, d job.Dataset) (*Coordinator, error) {
	req := d.Request(s.cfg.Job.Seed)
	if err := req.Validate(); err != nil {
		return nil, err
	}
	spec, err := specText(d)
	if err != nil {
		return nil, err
	}
	ds := cluster.Dataset{
		Name: d.Name, Source: d.Source, Coordinator: s.cfg.Node.Self(), Phase: cluster.Staging, Started: now(), Spec: spec,
		Replicas: d.Options.Replicas,
	}
	defer s.propose(d.Name)()
	// The caller may go away, and the proposal may be agreed on all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), registryTime)
	defer cancel()
	v, err := s.cfg.Node.Propose(ctx, raftstore.Command{Kind: raftstore.KindAddDataset, Dataset: ds})
	taken := errors.Is(err, syscall.EEXIST)
	if taken {
		v = s.viewWith(ctx, d.Name)
	} else if err != nil {
		return nil, fmt.Errorf("stage-in of %s: %w", d.Source, err)
	}
	// A proposal may have been repeated because its answer was lost; then the dataset found is this one.
	found, ok := v.Active(d.Name)
	if !ok || found.Coordinator != ds.Coordinator || found.Started != ds.Started {
		return nil, node.Present("stage-in of %s: a dataset named %q is there already: give another name as SRC:NAME, or --replace to end that one", d.Source, d.Name)
	}
	c := s.newCoordinator(found, req)
	s.add(c)
	return c, nil
}

// StageIn stages a dataset in and returns when its manifest is agreed on.
func (s *Stager) StageIn(ctx context.Context, d job.Dataset) error {
	c, err := s.Begin(ctx, d)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

func now() metadata.Time { return metadata.TimeOf(time.Now()) }

// specText returns a request as stored in the registry; "" if it is too long.
func specText(d job.Dataset) (string, error) {
	b, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("stage-in of %s: %v: %w", d.Source, err, syscall.EINVAL)
	}
	if len(b) > MaxSpec {
		return "", nil
	}
	return string(b), nil
}

// viewWith returns the first view with the dataset name, which is agreed on.
func (s *Stager) viewWith(ctx context.Context, name string) cluster.View {
	s.cfg.Node.Nudge()
	_ = s.cfg.Node.Until(ctx, func(v cluster.View) bool { // on an error, the caller finds no dataset
		_, ok := v.Active(name)
		return ok
	})
	return s.cfg.Node.View()
}

// propose notes that this node is entering the dataset name in the registry; the returned function removes the note.
func (s *Stager) propose(name string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proposed[name]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.proposed[name]--; s.proposed[name] == 0 {
			delete(s.proposed, name)
		}
	}
}

func (s *Stager) add(c *Coordinator) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coordinators[c.ds.ID] = c
}

// remove removes a coordinator, but not one of a later attempt.
func (s *Stager) remove(c *Coordinator) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.coordinators[c.ds.ID] == c {
		delete(s.coordinators, c.ds.ID)
	}
}

// coordinator returns the coordinator of a dataset on this node, even a finished one; nil if there is none.
func (s *Stager) coordinator(id metadata.DatasetID) *Coordinator {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.coordinators[id]
}

// coordinates reports whether this node coordinates ds, or may be about to.
func (s *Stager) coordinates(ds cluster.Dataset) (yes, maybe bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.coordinators[ds.ID] != nil, s.proposed[ds.Name] > 0
}

// Progress returns the progress of a stage-in that this node coordinates.
func (s *Stager) Progress(id metadata.DatasetID) (p stagein.Progress, total int64) {
	c := s.coordinator(id)
	if c == nil {
		return p, 0
	}
	return c.progress()
}

// Discard implements dataset.Stager: it drops boundaries of a dataset that is no longer staged.
func (s *Stager) Discard(id metadata.DatasetID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.boundaries, func(k boundaryKey, _ chan ingest.Boundary) bool { return k.ds == id })
}

// Published implements dataset.Stager.
func (s *Stager) Published(id metadata.DatasetID) {
	s.cfg.Data.Files.Remove(id, "part-*", "records-*", "skips-*", "mark-*", "attempt-*", dataset.State+"*", standbyFile)
}
