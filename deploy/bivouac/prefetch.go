package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/fsclient/prefetch"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// prefetchers has a prefetch engine for each dataset, which waits for the dataset's access plan.
type prefetchers struct {
	node   *node
	budget int64 // of each engine, in bytes
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	engines map[metadata.DatasetID]engine // guarded by mu
	stopped bool                          // guarded by mu
}

// engine prefetches a dataset until end is called.
type engine struct {
	*prefetch.Engine
	end context.CancelFunc
}

func newPrefetchers(n *node) *prefetchers {
	p := &prefetchers{node: n, budget: aheadOf(n.job), engines: make(map[metadata.DatasetID]engine)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// The default of ahead=: a share of the memory, bounded on both sides.
const (
	aheadShare = 16
	leastAhead = 64 << 20
	mostAhead  = 1 << 30
)

// aheadOf returns the memory for prefetched files of a dataset, in bytes: the job's setting, else a share of the
// daemon's limit or of the machine's memory.
func aheadOf(j *job.File) int64 {
	switch {
	case j.Ahead == job.AheadOff:
		return 0
	case j.Ahead > 0:
		return j.Ahead
	}
	memory, limited := daemon.CgroupLimit(os.DirFS("/"))
	if !limited {
		memory = machineMemory()
	}
	return min(max(memory/aheadShare, leastAhead), mostAhead)
}

// see starts the engine of a readable dataset, and ends that of a dataset that ended. It may be called more than once
// for each.
func (p *prefetchers) see(ds cluster.Dataset) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, runs := p.engines[ds.ID]
	switch {
	case ds.Phase.Ended() && runs:
		old.end()
		delete(p.engines, ds.ID)
		return
	case ds.Phase.Ended(), runs, p.stopped:
		return
	}
	n, plans := p.node, p.node.daemon.Plans()
	e := prefetch.NewEngine(prefetch.EngineConfig{
		Client: n.client, Files: tableFiles{n.daemon, ds}, Budget: p.budget, Log: n.log.WithField("dataset", ds.Name), Now: time.Now,
		Plan:      func() (*accessplan.Plan, <-chan struct{}) { return plans.Plan(ds.ID) },
		Positions: func() []accessplan.Position { return plans.Positions(ds.ID) },
		Filling:   func() bool { return n.daemon.Filling(ds.ID) },
	})
	ctx, end := context.WithCancel(p.ctx)
	p.engines[ds.ID] = engine{e, end}
	p.wg.Go(func() { e.Run(ctx) })
}

// of returns the prefetch of a dataset; nil if there is none.
func (p *prefetchers) of(ds metadata.DatasetID) mount.Prefetch {
	if e := p.engine(ds); e != nil {
		return e
	}
	return nil
}

// engine returns the engine of a dataset; nil if there is none.
func (p *prefetchers) engine(ds metadata.DatasetID) *prefetch.Engine {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.engines[ds].Engine
}

// state returns the progress through the plan of a dataset on this node.
func (p *prefetchers) state(ds metadata.DatasetID) accessplan.State {
	e := p.engine(ds)
	if e == nil {
		return accessplan.State{Phase: accessplan.Waiting}
	}
	s := e.State()
	for i := range s.Ranks {
		s.Ranks[i].Node = p.node.job.Hosts[p.node.job.Self]
	}
	return s
}

// stop ends all engines.
func (p *prefetchers) stop() {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
}

// tableFiles lists the files of a dataset while the dataset exists.
type tableFiles struct {
	d  *daemon.Daemon
	ds cluster.Dataset
}

// Files implements accessplan.Files.
func (f tableFiles) Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error {
	store, _ := f.d.Table(f.ds.ID)
	files, ok := store.(accessplan.Files)
	if !ok {
		return fmt.Errorf("manifest of %s: %w", f.ds.Name, syscall.ENOENT)
	}
	return files.Files(fn)
}
