package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

// CheckResult is what a check of the whole live realm has found. It answers
// POST /v1/check.
type CheckResult struct {
	Directories int64 `json:"directories"`
	Files       int64 `json:"files"`   // inodes that are no directories, orphans among them
	Names       int64 `json:"names"`   // entries of all directories
	Orphans     int64 `json:"orphans"` // files without a name that are open, or about to be removed
	Objects     int64 `json:"objects"` // of file data, on all nodes
	Passes      int   `json:"passes"`  // how often the tree was looked at
	// Wrong is how many things are wrong, and Problems names the first of them.
	Wrong    int      `json:"wrong"`
	Problems []string `json:"problems"`
}

const (
	// checkPasses is how often a tree is looked at in which something seems to
	// be wrong. What others are just changing looks wrong once.
	checkPasses = 6
	checkPause  = 250 * time.Millisecond // after the first pass; it doubles
	maxProblems = 1000                   // that are named
)

// Check compares what all nodes have of the live realm: names, inodes, link
// counts, parents, transactions and the objects of file data. The job goes on
// meanwhile: wrong is what is found again and again.
func (d *Daemon) Check(ctx context.Context) (CheckResult, error) {
	var r CheckResult
	var wrong []string
	for pass := 1; ; pass++ {
		now, problems, err := d.checkOnce(ctx)
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
		if err := node.Pause(ctx, checkPause<<(pass-1)); err != nil {
			return r, err
		}
	}
}

// checkOnce looks at the tree once. Problems are in order.
func (d *Daemon) checkOnce(ctx context.Context) (CheckResult, []string, error) {
	nodes := d.View().Map.Nodes
	for _, n := range nodes {
		if !node.Serving(n) {
			return CheckResult{}, nil, fmt.Errorf("%s is %v, and what it has cannot be compared: %w: see bivouac status", n.Host, n.State, syscall.EHOSTDOWN)
		}
	}
	// The objects come first: an inode is there before its first object, so an
	// object whose inode is not there later has none.
	objects := make([][]metadata.Ino, len(nodes))
	homes := make([]metadata.Inventory, len(nodes))
	for _, get := range []func(context.Context, metadata.NodeID) error{
		func(ctx context.Context, id metadata.NodeID) (err error) {
			objects[id], err = d.objectsOf(ctx, id)
			return err
		},
		func(ctx context.Context, id metadata.NodeID) (err error) {
			homes[id], err = d.censusOf(ctx, id)
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
		problems = append(problems, leaked(inos, homes, nodes[i].Host)...)
	}
	slices.Sort(problems)
	return counted(homes, objects), problems, nil
}

// leaked is the objects on host without an inode.
func leaked(objects []metadata.Ino, homes []metadata.Inventory, host string) []string {
	var wrong []string
	for _, ino := range objects {
		if int(ino.Home()) < len(homes) {
			if _, ok := homes[ino.Home()].Inodes[ino]; ok {
				continue
			}
		}
		wrong = append(wrong, fmt.Sprintf("%s has an object of inode %v, which is not there", host, ino))
	}
	return wrong
}

func counted(homes []metadata.Inventory, objects [][]metadata.Ino) CheckResult {
	var r CheckResult
	for _, h := range homes {
		for _, k := range h.Inodes {
			if k.Attr.Mode&syscall.S_IFMT == syscall.S_IFDIR {
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

// censusReq asks for the records of a home after a key.
type censusReq struct {
	After []byte `json:"after,omitempty"`
}

// censusReply is some of them; none is the end.
type censusReply struct {
	Records []pebblestore.Record `json:"records"`
}

// censusBytes is about how many bytes of records go into one reply: in JSON
// they have to fit into a frame.
const censusBytes = wire.MaxFrame / 8

func (d *Daemon) onCensus(ctx context.Context, _ metadata.NodeID, q *censusReq) (censusReply, error) {
	if len(q.After) == 0 {
		if err := d.ReportSections(ctx); err != nil {
			d.log.WithError(err).Debug("a section could not report")
		}
	}
	rs, err := d.meta.Records(ctx, q.After, censusBytes)
	return censusReply{rs}, err
}

// censusOf is all that a home has.
func (d *Daemon) censusOf(ctx context.Context, id metadata.NodeID) (metadata.Inventory, error) {
	c := pebblestore.NewInventoryBuilder(id)
	for q := (censusReq{}); ; {
		var r censusReply
		if err := d.askNode(ctx, id, wire.OpInventory, q, &r); err != nil || len(r.Records) == 0 {
			return c.Inventory(), err
		}
		for _, rec := range r.Records {
			if bytes.Compare(rec.Key, q.After) <= 0 {
				return c.Inventory(), fmt.Errorf("key %x comes after %x: %w", rec.Key, q.After, syscall.EPROTO)
			}
			if err := c.Add(rec); err != nil {
				return c.Inventory(), err
			}
			q.After = rec.Key
		}
	}
}

// objectsReq asks for one part of the objects of live files.
type objectsReq struct {
	Part uint8 `json:"part"`
}

type objectsReply struct {
	Inos []metadata.Ino `json:"inos"`
}

// maxObjects is how many inode numbers are sure to fit into a reply.
const maxObjects = wire.MaxFrame / 24

func (d *Daemon) onObjects(_ context.Context, _ metadata.NodeID, q *objectsReq) (objectsReply, error) {
	inos, err := d.liveObjects(q.Part)
	if len(inos) > maxObjects {
		return objectsReply{}, fmt.Errorf("%d objects in one directory: %w", len(inos), syscall.E2BIG)
	}
	return objectsReply{inos}, err
}

func (d *Daemon) liveObjects(part uint8) ([]metadata.Ino, error) {
	return d.data.List(part, func(i metadata.Ino) bool { return !i.Sealed() })
}

// objectsOf is the objects of live files on a node.
func (d *Daemon) objectsOf(ctx context.Context, id metadata.NodeID) ([]metadata.Ino, error) {
	var mu sync.Mutex
	var all []metadata.Ino // guarded by mu
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(askWorkers)
	for part := range chunkstore.Parts {
		g.Go(func() error {
			var r objectsReply
			err := d.askNode(ctx, id, wire.OpObjects, objectsReq{uint8(part)}, &r)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, r.Inos...)
			return err
		})
	}
	return all, g.Wait()
}

// checkCall is how long a node may take for one answer.
const checkCall = 30 * time.Second

// askNode asks a node, which may be this one, for a part of what it has.
func (d *Daemon) askNode(ctx context.Context, id metadata.NodeID, op wire.Op, q, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, checkCall)
	defer cancel()
	return d.Call(ctx, id, op, q, reply)
}

// postCheck checks the live realm, and waits.
func (d *Daemon) postCheck(w http.ResponseWriter, r *http.Request) {
	res, err := d.Check(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, res)
}

// Check compares what all nodes have of the live realm, and waits.
func (c *Ctl) Check(ctx context.Context) (CheckResult, error) {
	var r CheckResult
	return r, c.do(ctx, http.MethodPost, "/v1/check", nil, &r)
}
