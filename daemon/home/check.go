package home

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

// CheckResult is the result of a check of the whole live realm. It answers POST /v1/check.
type CheckResult struct {
	Directories int64 `json:"directories"`
	Files       int64 `json:"files"`   // inodes other than directories, including orphans
	Names       int64 `json:"names"`   // entries of all directories
	Orphans     int64 `json:"orphans"` // files without a name that are open, or being removed
	Objects     int64 `json:"objects"` // objects of file data, on all nodes
	Passes      int   `json:"passes"`  // how often the tree was compared
	// Wrong is the number of inconsistencies; Problems describes the first ones.
	Wrong    int      `json:"wrong"`
	Problems []string `json:"problems"`
}

const (
	// checkPasses is how often an inconsistent tree is compared. An operation in progress can look inconsistent in one
	// pass.
	checkPasses = 6
	checkPause  = 250 * time.Millisecond // pause after the first pass; it doubles
	maxProblems = 1000                   // problems that are described
)

// Check compares the live realm on all nodes: names, inodes, link counts, parents, transactions and the objects of file
// data. The job may run meanwhile: Check reports only what every pass has found.
func (s *Server) Check(ctx context.Context) (CheckResult, error) {
	var r CheckResult
	var wrong []string
	pauses := retry.New(checkPause, time.Minute, 0)
	for pass := 1; ; pass++ {
		now, problems, err := s.checkOnce(ctx)
		if err != nil {
			return r, err
		}
		if pass > 1 {
			problems = slices.DeleteFunc(problems, func(p string) bool { _, was := slices.BinarySearch(wrong, p); return !was })
		}
		r, wrong = now, problems
		r.Passes, r.Wrong, r.Problems = pass, len(wrong), wrong[:min(len(wrong), maxProblems)]
		if len(wrong) == 0 || pass == checkPasses {
			return r, nil
		}
		if !pauses.Wait(ctx) {
			return r, ctx.Err()
		}
	}
}

// checkOnce compares the tree once. It returns the problems sorted.
func (s *Server) checkOnce(ctx context.Context) (CheckResult, []string, error) {
	if err := s.allServe(); err != nil {
		return CheckResult{}, nil, fmt.Errorf("check needs all nodes: %w: see bivouac status", err)
	}
	nodes := s.node.View().Map.Nodes
	// Objects are listed before inodes. An inode is created before its first object, so an object whose inode is
	// missing in the later list is a leftover.
	objects := make([][]metadata.Ino, len(nodes))
	homes := make([]metadata.Inventory, len(nodes))
	for _, get := range []func(context.Context, metadata.NodeID) error{
		func(ctx context.Context, id metadata.NodeID) (err error) {
			if node.Serving(nodes[id]) { // if a node is down, its objects are lost, and its partner has its records
				objects[id], err = s.objectsOf(ctx, id)
			}
			return err
		},
		func(ctx context.Context, id metadata.NodeID) (err error) {
			homes[id], err = s.inventoryOf(ctx, id)
			return err
		},
	} {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(askWorkers)
		for _, n := range nodes {
			g.Go(func() error {
				if err := get(ctx, n.ID); err != nil {
					return fmt.Errorf("%s: %w", n.Host, err)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return CheckResult{}, nil, err
		}
	}
	problems := txn.Check(homes)
	for i, inos := range objects {
		problems = append(problems, leakedObjects(inos, homes, nodes[i].Host)...)
	}
	slices.Sort(problems)
	return sum(homes, objects), problems, nil
}

// leakedObjects describes the objects on host without an inode.
func leakedObjects(objects []metadata.Ino, homes []metadata.Inventory, host string) []string {
	var wrong []string
	for _, ino := range objects {
		ino = ino.File()
		if int(ino.Home()) < len(homes) {
			if _, ok := homes[ino.Home()].Inodes[ino]; ok {
				continue
			}
		}
		wrong = append(wrong, fmt.Sprintf("%s has an object of inode %v, which does not exist", host, ino))
	}
	return wrong
}

func sum(homes []metadata.Inventory, objects [][]metadata.Ino) CheckResult {
	var r CheckResult
	for _, h := range homes {
		for _, k := range h.Inodes {
			if isDir(k.Attr.Mode) {
				r.Directories++
			} else {
				r.Files++
			}
		}
		for _, es := range h.Entries {
			r.Names += int64(len(es))
		}
		r.Orphans += int64(len(h.Orphans))
	}
	for _, o := range objects {
		r.Objects += int64(len(o))
	}
	return r
}

// inventoryReq asks a home for its records after a key.
type inventoryReq struct {
	After []byte `json:"after,omitempty"`
}

// inventoryReply holds some of these records; an empty reply means the end.
type inventoryReply struct {
	Records []pebblestore.Record `json:"records"`
}

// inventoryBytes is the approximate size of the records in one reply. As JSON they must fit into a frame.
const inventoryBytes = wire.MaxFrame / 8

func (s *Server) onInventory(ctx context.Context, _ metadata.NodeID, q *inventoryReq) (inventoryReply, error) {
	if len(q.After) == 0 {
		if err := s.ReportShards(ctx); err != nil {
			s.log.WithError(err).Debug("shards could not report their changes")
		}
	}
	rs, err := s.Records(ctx, q.After, inventoryBytes)
	return inventoryReply{rs}, err
}

// inventoryOf collects all records of a home.
func (s *Server) inventoryOf(ctx context.Context, id metadata.NodeID) (metadata.Inventory, error) {
	c := pebblestore.NewInventoryBuilder(id)
	for q := (inventoryReq{}); ; {
		var r inventoryReply
		if err := s.ask(ctx, id, wire.OpInventory, q, &r); err != nil || len(r.Records) == 0 {
			return c.Inventory(), err
		}
		for _, rec := range r.Records {
			if bytes.Compare(rec.Key, q.After) <= 0 {
				return c.Inventory(), fmt.Errorf("key %x is not after %x: %w", rec.Key, q.After, syscall.EPROTO)
			}
			if err := c.Add(rec); err != nil {
				return c.Inventory(), err
			}
			q.After = rec.Key
		}
	}
}

// objectsReq asks for the objects of live files in one part of a store.
type objectsReq struct {
	Part uint8 `json:"part"`
}

type objectsReply struct {
	Inos []metadata.Ino `json:"inos"`
}

// maxObjects is the number of inode numbers that always fit into a reply.
const maxObjects = wire.MaxFrame / 24

func (s *Server) onObjects(_ context.Context, _ metadata.NodeID, q *objectsReq) (objectsReply, error) {
	inos, err := s.liveObjects(q.Part)
	if len(inos) > maxObjects {
		return objectsReply{}, fmt.Errorf("%d objects in one directory: %w", len(inos), syscall.E2BIG)
	}
	return objectsReply{inos}, err
}

func (s *Server) liveObjects(part uint8) ([]metadata.Ino, error) {
	return s.cfg.Data.List(part, func(i metadata.Ino) bool { return !i.Sealed() })
}

// objectsOf lists the objects of live files on a node.
func (s *Server) objectsOf(ctx context.Context, id metadata.NodeID) ([]metadata.Ino, error) {
	var mu sync.Mutex
	var all []metadata.Ino // guarded by mu
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(askWorkers)
	for part := range chunkstore.Parts {
		g.Go(func() error {
			var r objectsReply
			err := s.ask(ctx, id, wire.OpObjects, objectsReq{uint8(part)}, &r)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, r.Inos...)
			return err
		})
	}
	return all, g.Wait()
}

func (s *Server) checkHandlers() node.Handlers {
	return node.Handlers{
		wire.OpInventory:  node.HandleJSON(s.onInventory),
		wire.OpObjects:    node.HandleJSON(s.onObjects),
		wire.OpMissing:    node.HandleJSON(s.onGone),
		wire.OpReferenced: node.HandleJSON(s.onNamed),
	}
}
