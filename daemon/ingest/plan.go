package ingest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// path returns the path of a file in the directory of the attempt.
func (c *Coordinator) path(name string) string { return filepath.Join(c.dir(), name) }

func (c *Coordinator) planConfig() *scan.Config {
	s := c.s
	return &scan.Config{
		FS: s.cfg.Source, Request: c.req,
		Dataset: c.ds.ID, Map: s.cfg.Node.View().Map, UID: s.cfg.Job.UID, GID: s.cfg.Job.GID,
		Others: s.scanHelpers(c.ds.ID), Free: s.freeSpace(), Log: c.log(), Scratch: s.cfg.Data.Files.Scratch(c.ds.ID),
	}
}

// makePlan plans a single pass, and writes the items of each part to a file that the part's node fetches.
func (c *Coordinator) makePlan(ctx context.Context, cfg *scan.Config) (*stagein.Plan, error) {
	plan, err := scan.MakePlan(ctx, cfg)
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
		if err := os.WriteFile(c.path(dataset.PartFile(i)), b, 0o600); err != nil {
			return nil, fmt.Errorf("stage-in: %w", err)
		}
		if err := c.put(dataset.PartFile(i)); err != nil {
			return nil, err
		}
		plan.Parts[i] = plan.Parts[i].Bare() // the node that needs the items fetches them
	}
	return plan, nil
}

// scan lists and records the entries of the source without reading its files, if the source allows that.
func (c *Coordinator) scan(ctx context.Context, cfg *scan.Config) error {
	f, err := os.Create(c.path(dataset.RecordsFile(0)))
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	found, err := scan.Run(ctx, cfg, w)
	if err == nil {
		err = w.Flush()
	}
	if e := f.Close(); err == nil && e != nil {
		err = fmt.Errorf("stage-in: %w", e)
	}
	if err != nil || found == nil {
		return err
	}
	if err := c.keepOrigins(found.Origins); err != nil {
		return err
	}
	if len(found.Indexes) > 0 {
		c.s.cfg.Node.Spawn(func(context.Context) { found.Indexes.Save(cfg.Log) })
	}
	c.plan = &stagein.Plan{Dataset: c.ds.ID, Size: found.Size, Parts: []stagein.Part{{Node: c.s.cfg.Node.Self()}}}
	c.scanned = true
	c.mu.Lock()
	c.total, c.sum.SourceBytes = found.Size, found.Read
	c.mu.Unlock()
	return nil
}

// keepOrigins writes the sources of the dataset's files, for the nodes' fills: they refetch the files of a lost node,
// even if the dataset was staged in a single pass.
func (c *Coordinator) keepOrigins(o stagein.Origins) error {
	var order []byte
	if list := o.Order.List; list != "" {
		lines, err := walk.ReadLines(c.s.cfg.Source, list)
		if err != nil {
			return fmt.Errorf("stage-in of %s: %w", c.ds.Source, err)
		}
		order = []byte(strings.Join(lines, "\x00"))
	}
	b, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(c.path(dataset.Order), order, 0o600)
	}
	if err == nil {
		err = os.WriteFile(c.path(dataset.Origins), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	if err := c.put(dataset.Order, dataset.Origins); err != nil {
		return err
	}
	c.ds.Fill = true
	return nil
}

// freeSpaceTime bounds the calls of freeSpace.
const freeSpaceTime = 5 * time.Second

// freeSpace returns a function for the room for datasets on each serving node; false for a node that did not answer.
func (s *Stager) freeSpace() func(metadata.NodeID) (int64, bool) {
	ctx, cancel := context.WithTimeout(s.cfg.Ctx, freeSpaceTime)
	defer cancel()
	var mu sync.Mutex
	free := make(map[metadata.NodeID]int64) // guarded by mu
	var g errgroup.Group
	g.SetLimit(32)
	for _, id := range node.Participants(s.cfg.Node.View().Map) {
		g.Go(func() error {
			if x, err := s.cfg.Data.Stores.Of(id).Space(ctx); err == nil {
				mu.Lock()
				free[id] = max(x.Free-s.cfg.Job.Scratch.Of(x.Capacity), 0)
				mu.Unlock()
			}
			return nil
		})
	}
	_ = g.Wait() // no function fails
	return func(id metadata.NodeID) (int64, bool) { f, ok := free[id]; return f, ok }
}

const (
	// maxScanHelpers bounds the nodes that help to scan a tree: beyond that, the source's servers are the bottleneck.
	maxScanHelpers = 16
	// scanHelpTime is how long a helper may take before the coordinator scans that part itself.
	scanHelpTime = 30 * time.Second
)

// scanHelpers returns the nodes that help this one to scan a tree. They differ by dataset.
func (s *Stager) scanHelpers(ds metadata.DatasetID) (all []walk.Remote) {
	n := s.cfg.Node
	nodes := node.Participants(n.View().Map)
	for i := range nodes {
		id := nodes[(i+int(ds)*maxScanHelpers)%len(nodes)]
		if id == n.Self() || len(all) == maxScanHelpers {
			continue
		}
		all = append(all, func(ctx context.Context, q walk.Request) (seen walk.Reply, err error) {
			ctx, cancel := context.WithTimeout(ctx, scanHelpTime)
			defer cancel()
			err = n.Call(ctx, id, wire.OpScan, q, &seen)
			return seen, err
		})
	}
	return all
}

func (s *Stager) onScan(ctx context.Context, _ metadata.NodeID, q *walk.Request) (walk.Reply, error) {
	return q.Serve(ctx, s.cfg.Source)
}
