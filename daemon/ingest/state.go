package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// state is the state of a single pass, stored as JSON in dataset.State: everything that another coordinator needs to
// continue. The coordinator saves it, and replicates it to standbys.
type state struct {
	Attempt     int             `json:"attempt"` // the attempt that wrote it
	Version     int             `json:"version"` // rises with each change in an attempt
	Coordinator metadata.NodeID `json:"coordinator"`
	Boot        string          `json:"boot"` // of the coordinator's machine
	Plan        *stagein.Plan   `json:"plan"`
	Origins     stagein.Origins `json:"origins"`
	Skips       []stagein.Skip  `json:"skips,omitempty"` // entries that the plan leaves out
	Parts       []savedPart     `json:"parts"`           // in the order of the plan
}

// savedPart is the saved state of a part.
type savedPart struct {
	Wasted int64             `json:"wasted,omitempty"` // partState.wasted
	Lost   []metadata.NodeID `json:"lost,omitempty"`   // partState.lost
	Read   int64             `json:"read,omitempty"`   // bytes of the source read by the current node of the part
	// Fetched says that the coordinator has the part's records. Progress, Pieces and Kept are final then.
	Fetched  bool             `json:"fetched,omitempty"`
	Progress stagein.Progress `json:"progress,omitzero"`
	Pieces   []stagein.Piece  `json:"pieces,omitempty"`
	Kept     []stagein.Try    `json:"kept,omitempty"`
}

// newer reports whether p is more recent than o, which may be nil.
func (p *state) newer(o *state) bool {
	return o == nil || p.Attempt > o.Attempt || p.Attempt == o.Attempt && p.Version > o.Version
}

// checkState refuses a state that cannot belong to ds in this job.
func (s *Stager) checkState(p *state, ds metadata.DatasetID) error {
	if p.Plan == nil || p.Plan.Dataset != ds || len(p.Parts) != len(p.Plan.Parts) || len(p.Parts) == 0 {
		return fmt.Errorf("state of the stage-in of dataset %d: %d parts: %w", ds, len(p.Parts), syscall.EPROTO)
	}
	return s.checkParts(p.Plan)
}

// files returns the names of the files that belong to the state, without its own.
func (p *state) files() (names []string) {
	if p.Plan.Itemized() {
		for i := range p.Plan.Parts {
			names = append(names, dataset.PartFile(i))
		}
	}
	return names
}

// nextState returns the current state with the next version. The caller holds the saving token.
func (c *Coordinator) nextState() *state {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	p := &state{
		Attempt: c.ds.Attempt, Version: c.version, Coordinator: c.s.cfg.Node.Self(), Boot: dataset.BootID(),
		Plan: c.plan, Origins: c.plan.Origins, Skips: c.plan.Skips,
	}
	for _, x := range c.parts {
		o := savedPart{Wasted: x.wasted, Lost: slices.Clone(x.lost), Read: x.progress.SourceBytes}
		if x.fetched {
			o.Fetched, o.Progress, o.Pieces, o.Kept = true, x.progress, x.pieces, x.kept
		}
		p.Parts = append(p.Parts, o)
	}
	return p
}

// save saves the state on this node.
func (c *Coordinator) save() error {
	c.saving <- struct{}{}
	defer func() { <-c.saving }()
	_, err := c.saveState()
	return err
}

// saveState is save for a caller that holds the saving token.
func (c *Coordinator) saveState() (*state, error) {
	p := c.nextState()
	if err := writeJSONFile(c.path(dataset.State), p); err != nil {
		return nil, fmt.Errorf("stage-in: %w", err)
	}
	return p, c.put(dataset.State)
}

// writeJSONFile writes v to a file, which appears atomically.
func writeJSONFile(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return node.ReplaceFile(path, b)
}

// ownState returns the state of ds in this node's file name; nil if there is none.
func (s *Stager) ownState(ds metadata.DatasetID, name string) (*state, error) {
	b, err := os.ReadFile(s.cfg.Data.Files.Path(ds, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("stage-in: %w", err)
	}
	return s.parseState(b, ds)
}

func (s *Stager) parseState(b []byte, ds metadata.DatasetID) (*state, error) {
	p := new(state)
	if err := node.DecodeJSON(b, p); err != nil {
		return nil, fmt.Errorf("stage-in: %w", err)
	}
	return p, s.checkState(p, ds)
}

const (
	// findTime bounds one attempt to find the state of a stage-in and to fetch its files, such as lists of millions of
	// files.
	findTime = 2 * time.Minute
	// maxAsked is how many nodes are asked concurrently.
	maxAsked = 64
)

// findState returns the newest state of the stage-in of ds: this node's own if it was the last coordinator, otherwise
// the newest of all nodes; nil if no node has one.
func (s *Stager) findState(ctx context.Context, ds cluster.Dataset) (*state, error) {
	ctx, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	n := s.cfg.Node
	own, err := s.ownState(ds.ID, dataset.State)
	if err != nil {
		n.Log().WithError(err).WithField("dataset", ds.Name).Warn("saved state of a stage-in is damaged: asking the other nodes")
		own = nil
	}
	if own != nil && own.Coordinator == n.Self() && own.Attempt == ds.Attempt {
		return own, nil
	}
	others := slices.DeleteFunc(n.View().Map.Up(), func(id metadata.NodeID) bool { return id == n.Self() })
	best, from, err := newestState(ctx, others, func(ctx context.Context, id metadata.NodeID) (*state, error) { return s.stateOf(ctx, ds.ID, id) })
	if err != nil || best == nil || !best.newer(own) {
		return own, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxAsked)
	for _, name := range best.files() {
		g.Go(func() error {
			return s.cfg.Data.Files.Fetch(ctx, from, ds.ID, name, s.cfg.Data.Files.Path(ds.ID, name))
		})
	}
	return best, g.Wait()
}

// newestState returns the newest state that nodes have; nil if they have none. All nodes must answer.
func newestState(ctx context.Context, nodes []metadata.NodeID, ask func(context.Context, metadata.NodeID) (*state, error)) (best *state, from metadata.NodeID, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxAsked)
	var mu sync.Mutex // of best and from
	for _, id := range nodes {
		g.Go(func() error {
			p, err := ask(ctx, id)
			if err != nil || p == nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if p.newer(best) {
				best, from = p, id
			}
			return nil
		})
	}
	err = g.Wait()
	return best, from, err
}

// stateOf returns the state that another node has; nil if it has none.
func (s *Stager) stateOf(ctx context.Context, ds metadata.DatasetID, id metadata.NodeID) (*state, error) {
	name := dataset.State + ".from-" + strconv.Itoa(int(id))
	path := s.cfg.Data.Files.Path(ds, name)
	err := s.cfg.Data.Files.Fetch(ctx, id, ds, dataset.State, path)
	if errors.Is(err, syscall.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p, err := s.ownState(ds, name)
	return p, errors.Join(err, os.Remove(path))
}

// resume makes c continue from p.
func (c *Coordinator) resume(p *state) {
	self := c.s.cfg.Node.Self()
	own := p.Coordinator == self && p.Boot == dataset.BootID() // the files that it fetched are here, too
	if own {
		c.inheritAttempt(p.Attempt)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plan, c.resumed, c.version = p.Plan, true, p.Version
	c.plan.Origins, c.plan.Skips = p.Origins, p.Skips
	c.initPartsLocked(len(p.Parts))
	for i, o := range p.Parts {
		x := &c.parts[i]
		x.wasted, x.lost, x.progress.SourceBytes = o.Wasted, o.Lost, o.Read
		if own && o.Fetched && c.hasRecords(i) {
			x.fetched, x.progress, x.pieces, x.kept = true, o.Progress, o.Pieces, o.Kept
		}
	}
	c.total = p.Plan.Size
	c.sumLocked()
}

func (c *Coordinator) hasRecords(i int) bool {
	_, err := os.Stat(c.partPath(c.plan.Parts[i].Node, dataset.RecordsFile(i)))
	return err == nil
}

// inheritAttempt takes over the directory of an earlier attempt on this node.
func (c *Coordinator) inheritAttempt(attempt int) {
	was := c.ds
	was.Attempt = attempt
	if err := os.Rename(c.s.attemptDir(was), c.dir()); err != nil {
		c.log().WithError(err).Debug("files of the last attempt are fetched again")
	}
}
