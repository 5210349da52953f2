package plans

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// StateFunc returns the state of the prefetch that follows the plan of a dataset on this node.
type StateFunc func(id metadata.DatasetID) accessplan.State

// FileName returns the name of a plan's body in the dataset's staging directory.
func FileName(digest string) string { return "plan-" + digest }

// Plans holds the plans of the job, as this node knows them.
type Plans struct {
	n     node.Node
	files *dataset.Files
	retry time.Duration // pause before fetching a body is retried

	mu      sync.Mutex
	plans   map[metadata.DatasetID]*held  // guarded by mu
	changed chan struct{}                 // guarded by mu; closed when plans changes
	state   StateFunc                     // guarded by mu; may be nil
	own     map[metadata.DatasetID]string // guarded by mu; digest of the plan that this node set last: its file stays
}

// held is the plan of a dataset.
type held struct {
	plan      *accessplan.Plan
	digest    string
	positions map[int]accessplan.Position // by rank
}

// New returns Plans that store the bodies of plans in files.
func New(n node.Node, files *dataset.Files, retry time.Duration) *Plans {
	return &Plans{n: n, files: files, retry: retry, plans: make(map[metadata.DatasetID]*held), own: make(map[metadata.DatasetID]string), changed: make(chan struct{})}
}

// SetState sets the function that returns the states of this node's plans.
func (p *Plans) SetState(f StateFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = f
}

// Dataset returns the active dataset with a name.
func (p *Plans) Dataset(name string) (cluster.Dataset, error) {
	if ds, ok := p.n.View().Active(name); ok {
		return ds, nil
	}
	return cluster.Dataset{}, dataset.Unknown(name, cluster.Current(p.n.View().Datasets))
}

// Set makes plan the plan of its dataset on all nodes.
func (p *Plans) Set(ctx context.Context, plan accessplan.Plan) (digest string, err error) {
	if err := plan.Check(); err != nil {
		return "", err
	}
	ds, err := p.Dataset(plan.Dataset)
	if err != nil {
		return "", err
	}
	digest = plan.Digest()
	if ds.Plan == digest {
		return digest, nil // several ranks may set the same plan
	}
	p.mu.Lock()
	p.own[ds.ID] = digest
	p.mu.Unlock()
	b, err := json.Marshal(plan)
	if err == nil {
		err = p.files.Write(ds.ID, FileName(digest), b)
	}
	if err != nil {
		return "", fmt.Errorf("access plan of %s: %w", plan.Dataset, err)
	}
	if _, err := p.n.Propose(ctx, raftstore.Command{Kind: raftstore.KindSetPlan, Dataset: cluster.Dataset{ID: ds.ID, Plan: digest}}); err != nil {
		return "", fmt.Errorf("access plan of %s: %w", plan.Dataset, err)
	}
	return digest, nil
}

// Clear removes the plan of a dataset from all nodes.
func (p *Plans) Clear(ctx context.Context, name string) error {
	ds, err := p.Dataset(name)
	if err != nil || ds.Plan == "" {
		return err
	}
	_, err = p.n.Propose(ctx, raftstore.Command{Kind: raftstore.KindSetPlan, Dataset: cluster.Dataset{ID: ds.ID}})
	return err
}

// load reads the body of the plan that the registry has for ds, and fetches it first if necessary.
func (p *Plans) load(ctx context.Context, ds cluster.Dataset) (*accessplan.Plan, error) {
	path := p.files.Path(ds.ID, FileName(ds.Plan))
	for fetched := false; ; fetched = true {
		plan, err := read(path, ds.Plan)
		if err == nil || fetched {
			return plan, err
		}
		if err := p.files.FetchAny(ctx, ds, FileName(ds.Plan)); err != nil {
			return nil, err
		}
	}
}

func read(path, digest string) (*accessplan.Plan, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var plan accessplan.Plan
	if err := node.DecodeJSON(b, &plan); err != nil {
		return nil, err
	}
	if err := plan.Check(); err != nil {
		return nil, err
	}
	if plan.Digest() != digest {
		return nil, fmt.Errorf("access plan of %s is not the one with digest %s: %w", plan.Dataset, digest, syscall.EPROTO)
	}
	return &plan, nil
}

// Run follows the registry until ctx ends.
func (p *Plans) Run(ctx context.Context) {
	node.Follow(ctx, p.n, p.retry, p.retry, func(v cluster.View) bool {
		done := true
		for _, ds := range v.Datasets {
			done = p.follow(ctx, ds) && done
		}
		return done
	})
}

// follow reports whether this node has the plan that the registry has for ds.
func (p *Plans) follow(ctx context.Context, ds cluster.Dataset) bool {
	want := ds.Plan
	if ds.Phase.Ended() {
		want = ""
	}
	if p.digest(ds.ID) == want {
		return true
	}
	log := p.n.Log().WithField("dataset", ds.Name)
	if want == "" {
		p.put(ds.ID, nil)
		log.Info("access plan removed: nothing is prefetched any more")
		return true
	}
	plan, err := p.load(ctx, ds)
	if err != nil {
		log.WithError(err).Debug("access plan not loaded yet: retrying")
		return false
	}
	p.put(ds.ID, &held{plan: plan, digest: want})
	log.WithFields(map[string]any{"plan": plan.String(), "digest": want}).Info("access plan loaded: files are prefetched in its order")
	return true
}

func (p *Plans) digest(id metadata.DatasetID) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.plans[id]; h != nil {
		return h.digest
	}
	return ""
}

// put replaces the plan of a dataset; nil removes it.
func (p *Plans) put(id metadata.DatasetID, h *held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.plans[id]
	switch {
	case h == nil:
		delete(p.plans, id)
	case old != nil && old.digest == h.digest:
		return
	default:
		h.positions = make(map[int]accessplan.Position)
		p.plans[id] = h
	}
	if old != nil && old.digest != p.own[id] {
		p.files.Remove(id, FileName(old.digest))
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// Plan returns the plan of a dataset, nil if it has none, and a channel that is closed when a plan changes. The caller
// must not change the plan.
func (p *Plans) Plan(id metadata.DatasetID) (*accessplan.Plan, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.plans[id]; h != nil {
		return h.plan, p.changed
	}
	return nil, p.changed
}

// Loaded returns the plan that the registry has for ds; nil if it has none or it is not here yet.
func (p *Plans) Loaded(ds cluster.Dataset) *accessplan.Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.plans[ds.ID]; h != nil && h.digest == ds.Plan {
		return h.plan
	}
	return nil
}

// Of returns the plan of the dataset name.
func (p *Plans) Of(name string) (id metadata.DatasetID, plan *accessplan.Plan, err error) {
	ds, err := p.Dataset(name)
	if err != nil {
		return 0, nil, err
	}
	if plan, _ = p.Plan(ds.ID); plan == nil {
		return ds.ID, nil, node.Absent("dataset %s has no access plan: set one with bivouac plan set or order=seed:S", name)
	}
	return ds.ID, plan, nil
}

// maxRanks bounds the positions that are kept for a plan.
const maxRanks = 1 << 16

// Report records positions of ranks on this node. Positions of another plan are ignored.
func (p *Plans) Report(all []accessplan.Position) error {
	for _, pos := range all {
		ds, err := p.Dataset(pos.Dataset)
		if err != nil {
			return err
		}
		if pos.Rank < 0 || pos.Rank >= maxRanks || pos.Epoch < 0 || pos.Position < 0 {
			return fmt.Errorf("position %d of rank %d in epoch %d: %w", pos.Position, pos.Rank, pos.Epoch, syscall.EINVAL)
		}
		p.mu.Lock()
		if h := p.plans[ds.ID]; h != nil && (pos.Digest == "" || pos.Digest == h.digest) {
			h.positions[pos.Rank] = pos
		}
		p.mu.Unlock()
	}
	return nil
}

// Positions returns the positions that ranks of this node have reported, by rank.
func (p *Plans) Positions(id metadata.DatasetID) []accessplan.Position {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.plans[id]
	if h == nil || len(h.positions) == 0 {
		return nil
	}
	all := make([]accessplan.Position, 0, len(h.positions))
	for _, pos := range h.positions {
		all = append(all, pos)
	}
	slices.SortFunc(all, func(a, b accessplan.Position) int { return cmp.Compare(a.Rank, b.Rank) })
	return all
}

// stateRequest asks a node for the state of the prefetch that follows a dataset's plan.
type stateRequest struct {
	Dataset metadata.DatasetID `json:"dataset"`
}

// Handlers returns the handlers for calls from other nodes.
func (p *Plans) Handlers() node.Handlers {
	return node.Handlers{wire.OpPlanState: node.HandleJSON(p.onState)}
}

func (p *Plans) onState(_ context.Context, _ metadata.NodeID, q *stateRequest) (accessplan.State, error) {
	return p.Here(q.Dataset), nil
}

// Here returns the state of the prefetch that follows a dataset's plan on this node.
func (p *Plans) Here(id metadata.DatasetID) accessplan.State {
	digest := p.digest(id)
	p.mu.Lock()
	f := p.state
	p.mu.Unlock()
	s := accessplan.State{Phase: accessplan.Waiting}
	if f != nil && digest != "" {
		s = f(id)
	}
	s.Digest = digest
	return s
}

// stateTime bounds how long State waits for the other nodes.
const stateTime = 2 * time.Second

// State returns the state of the prefetch that follows a plan in the job, without the nodes that do not answer.
func (p *Plans) State(ctx context.Context, id metadata.DatasetID) accessplan.State {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	var states []accessplan.State
	node.AskAll(ctx, p.n, wire.OpPlanState, stateRequest{id}, func(from cluster.Node, s accessplan.State, err error) {
		if err != nil || s.Digest != p.digest(id) {
			return
		}
		for i := range s.Ranks {
			s.Ranks[i].Node = from.Host
		}
		states = append(states, s)
	})
	return accessplan.Merge(states)
}
