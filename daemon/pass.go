package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// A pass is a stage-in of a source that is read to be known. Who leads it keeps what
// another has to know to go on with it, and has some other nodes, its heirs, keep that,
// too. So a daemon that led one and has started again goes on with it, and an heir, or
// any node that asks one, does if it does not come back. The parts that other nodes
// read are not disturbed; what the one who is gone has read itself is read again. The
// manifest is given to heirs, too, before it is published, by whichever way it was made.

// passFile is what is kept; it appears whole or not at all.
const passFile = "pass"

// heirs is how many other nodes keep it.
const heirs = 2

// A manifest of so many bytes is given to all nodes of a job of so many before it is published.
const (
	smallManifest = 4 << 20
	smallJob      = 16
)

// pass is how a stage-in stands, as JSON in passFile.
type pass struct {
	Turn    int             `json:"turn"`    // of the stage-in, in which this was written
	Version int             `json:"version"` // rises with each change in a turn
	Leader  metadata.NodeID `json:"leader"`  // who wrote it
	Boot    string          `json:"boot"`    // of the leader's machine
	Plan    *stagein.Plan   `json:"plan"`
	Origins stagein.Origins `json:"origins"`
	Skips   []stagein.Skip  `json:"skips,omitempty"` // what the plan leaves out
	Parts   []passPart      `json:"parts"`           // as those of Plan
}

// passPart is how a part stands.
type passPart struct {
	Vain int64             `json:"vain,omitempty"` // partState.vain
	Lost []metadata.NodeID `json:"lost,omitempty"` // partState.lost
	Read int64             `json:"read,omitempty"` // bytes of the source, by the node that has the part
	// Brought says that the leader has what the part recorded. Progress, Pieces and Kept
	// are those of the part then.
	Brought  bool             `json:"brought,omitempty"`
	Progress stagein.Progress `json:"progress,omitzero"`
	Pieces   []stagein.Piece  `json:"pieces,omitempty"`
	Kept     []stagein.Try    `json:"kept,omitempty"`
}

// newer reports whether p is to be believed before o, which may be nil.
func (p *pass) newer(o *pass) bool {
	return o == nil || p.Turn > o.Turn || p.Turn == o.Turn && p.Version > o.Version
}

// checkPass refuses what cannot be a pass of ds in this job.
func (d *Daemon) checkPass(p *pass, ds metadata.DatasetID) error {
	if p.Plan == nil || p.Plan.Dataset != ds || len(p.Parts) != len(p.Plan.Parts) || len(p.Parts) == 0 {
		return fmt.Errorf("pass of dataset %d: %d parts: %w", ds, len(p.Parts), syscall.EPROTO)
	}
	return d.checkParts(p.Plan)
}

// files is what belongs to the pass beside passFile.
func (p *pass) files() (names []string) {
	if p.Plan.Itemized() {
		for i := range p.Plan.Parts {
			names = append(names, partFile(i))
		}
	}
	return names
}

// keeping is what an intake has kept of itself.
type keeping struct {
	slot    chan struct{}     // has one while it is being written and spread, by one at a time
	version int               // guarded by slot
	heirs   []metadata.NodeID // guarded by slot
}

// passNow is how the stage-in stands, for one who has the slot of keep.
func (in *intake) passNow() *pass {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.keep.version++
	p := &pass{
		Turn: in.ds.Turn, Version: in.keep.version, Leader: in.d.job.Self, Boot: bootID(),
		Plan: in.plan, Origins: in.plan.Origins, Skips: in.plan.Skips,
	}
	for _, x := range in.parts {
		o := passPart{Vain: x.vain, Lost: slices.Clone(x.lost), Read: x.progress.SourceBytes}
		if x.brought {
			o.Brought, o.Progress, o.Pieces, o.Kept = true, x.progress, x.pieces, x.kept
		}
		p.Parts = append(p.Parts, o)
	}
	return p
}

// save keeps how the stage-in stands on this node.
func (in *intake) save() error {
	in.keep.slot <- struct{}{}
	defer func() { <-in.keep.slot }()
	_, err := in.savePass()
	return err
}

// savePass is save for one who has the slot.
func (in *intake) savePass() (*pass, error) {
	p := in.passNow()
	if err := writeJSONFile(filepath.Join(in.dir(), passFile), p); err != nil {
		return nil, fmt.Errorf("stage-in: %w", err)
	}
	return p, in.put(passFile)
}

// writeJSONFile writes v to a file, which appears whole or not at all.
func writeJSONFile(path string, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(path+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	return err
}

// entrust keeps how the stage-in stands on this node, and on its heirs: on others in
// place of those that are lost. That there is nobody to give it to is no error.
func (in *intake) entrust(ctx context.Context) error {
	in.keep.slot <- struct{}{}
	defer func() { <-in.keep.slot }()
	p, err := in.savePass()
	if err != nil {
		return err
	}
	in.keep.heirs = in.give(ctx, entrustReq{Dataset: in.ds.ID, Turn: in.ds.Turn, Names: append(p.files(), passFile)})
	return nil
}

// ownPass is what this node has kept of the stage-in of ds; nil if that is nothing.
func (d *Daemon) ownPass(ds metadata.DatasetID, name string) (*pass, error) {
	b, err := os.ReadFile(filepath.Join(d.stageDir(ds), name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("stage-in: %w", err)
	}
	return d.parsePass(b, ds)
}

// parsePass reads what pass says.
func (d *Daemon) parsePass(b []byte, ds metadata.DatasetID) (*pass, error) {
	p := new(pass)
	if err := node.DecodeJSON(b, p); err != nil {
		return nil, fmt.Errorf("stage-in: %w", err)
	}
	return p, d.checkPass(p, ds)
}

// findTime bounds a try to find out how a stage-in stands, and to have what belongs to
// that. Lists of millions of files are among it.
const findTime = 2 * time.Minute

// maxAsked is how many nodes are asked at a time.
const maxAsked = 64

// findPass is how the stage-in of ds stands: by what this node has kept of it if it led
// it until now, else by what some node has. It is nil if none has anything.
func (d *Daemon) findPass(ctx context.Context, ds cluster.Dataset) (*pass, error) {
	ctx, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	own, err := d.ownPass(ds.ID, passFile)
	if err != nil {
		d.log.WithError(err).WithField("dataset", ds.Name).Warn("what was kept of a stage-in cannot be read")
		own = nil
	}
	if own != nil && own.Leader == d.job.Self && own.Turn == ds.Turn {
		return own, nil
	}
	others := slices.DeleteFunc(d.View().Map.Up(), func(id metadata.NodeID) bool { return id == d.job.Self })
	best, from, err := newestPass(ctx, others, func(ctx context.Context, id metadata.NodeID) (*pass, error) { return d.passOf(ctx, ds.ID, id) })
	if err != nil || best == nil || !best.newer(own) {
		return own, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxAsked)
	for _, name := range best.files() {
		g.Go(func() error {
			return d.fetch(ctx, from, blobReq{Dataset: ds.ID, Name: name}, filepath.Join(d.stageDir(ds.ID), name))
		})
	}
	return best, g.Wait()
}

// newestPass asks nodes, all of which have to answer, for what they have kept; nil is
// nothing.
func newestPass(ctx context.Context, nodes []metadata.NodeID, ask func(context.Context, metadata.NodeID) (*pass, error)) (best *pass, from metadata.NodeID, err error) {
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

// passOf is what another node has kept of a stage-in; nil if that is nothing.
func (d *Daemon) passOf(ctx context.Context, ds metadata.DatasetID, id metadata.NodeID) (*pass, error) {
	name := passFile + ".from-" + strconv.Itoa(int(id))
	path := filepath.Join(d.stageDir(ds), name)
	err := d.fetch(ctx, id, blobReq{Dataset: ds, Name: passFile}, path)
	if errors.Is(err, syscall.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p, err := d.ownPass(ds, name)
	return p, errors.Join(err, os.Remove(path))
}

// takeUp makes in go on where p was written.
func (in *intake) takeUp(p *pass) {
	d := in.d
	here := p.Leader == d.job.Self && p.Boot == bootID() // so is what was brought
	if here {
		in.inheritTurn(p.Turn)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.plan, in.taken, in.keep.version = p.Plan, true, p.Version
	in.plan.Origins, in.plan.Skips = p.Origins, p.Skips
	in.initParts(len(p.Parts))
	for i, o := range p.Parts {
		x := &in.parts[i]
		x.vain, x.lost, x.progress.SourceBytes = o.Vain, o.Lost, o.Read
		if here && o.Brought && in.has(i) {
			x.brought, x.progress, x.pieces, x.kept = true, o.Progress, o.Pieces, o.Kept
		} else if p.Plan.Parts[i].Node == d.job.Self {
			x.progress.SourceBytes = max(o.Read, readCount(d.readFile(in.ds.ID, i))) // by an earlier run of this daemon
		}
	}
	in.now.Total = p.Plan.Size
	in.sumLocked()
}
