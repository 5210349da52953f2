package dataset

import (
	"context"
	"maps"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Config configures Datasets.
type Config struct {
	Ctx      context.Context // ends when the daemon stops
	Node     node.Node
	Tasks    *tasks.Runner
	Job      *job.File
	Dir      string // holds the staging directories
	Store    *chunkstore.Store
	KV       func(metadata.DatasetID) KV     // where a manifest is stored
	Remote   func(rpc.Caller) datapath.Store // returns the store of another node
	Source   source.FS                       // where datasets come from
	Window   int64                           // see FillsConfig
	Rate     *rate.Bucket                    // limits the bytes sent to other nodes; nil: unlimited
	Copying  *rate.Bucket                    // limits the bytes that replicas read from other nodes; nil: unlimited
	Patience time.Duration                   // how long calls to a silent node are repeated
	Retry    time.Duration                   // pause before loading a dataset is retried
	// Plan returns the access plan that the registry has for a dataset; nil if it is not here yet.
	Plan func(cluster.Dataset) *accessplan.Plan
}

// Datasets holds all parts of a node that deal with datasets.
type Datasets struct {
	Files    *Files
	Fence    *Fence
	Stores   *Stores
	Tables   *Tables
	Fills    *Fills
	Replicas *replicas.Replicas
	Local    Local
	Server   *Server
	Verifier *Verifier
	Follower *Follower
}

// New creates the parts and registers their tasks.
func New(cfg Config) *Datasets {
	n := cfg.Node
	files, fence := NewFiles(cfg.Dir, n), NewFence(cfg.Ctx, cfg.Store, cfg.Job.Scratch)
	stores := &Stores{n: n, fence: fence, own: cfg.Store, remote: cfg.Remote, patience: cfg.Patience}
	tables := NewTables(n, files, cfg.KV)
	fills := NewFills(FillsConfig{
		Ctx: cfg.Ctx, Node: n, Store: cfg.Store, Fence: fence, Files: files, Stores: stores,
		Source: cfg.Source, Window: cfg.Window, Sums: cfg.Job.VerifyReads,
	})
	reps := newReplicas(cfg, stores, tables, fills)
	local := Local{cfg.Store, fills, nil}
	v := &Verifier{
		n: n, tasks: cfg.Tasks, hosts: cfg.Job.Hosts, files: files, tables: tables, fills: fills,
		store: cfg.Store, local: local, stores: stores,
	}
	v.register()
	check := &readCheck{n: n, store: cfg.Store, tables: tables, fills: fills, dropPages: v.DropPages}
	local.check = check
	return &Datasets{
		Files: files, Fence: fence, Stores: stores, Tables: tables, Fills: fills, Replicas: reps, Local: local, Verifier: v,
		Server:   &Server{ctx: cfg.Ctx, log: n, store: cfg.Store, fence: fence, fills: fills, check: check, rate: cfg.Rate},
		Follower: &Follower{n: n, tasks: cfg.Tasks, retry: cfg.Retry, files: files, fence: fence, tables: tables, fills: fills},
	}
}

// newReplicas creates the node's Replicas, and has fills and the store use them.
func newReplicas(cfg Config, stores *Stores, tables *Tables, fills *Fills) *replicas.Replicas {
	fence, files := fills.cfg.Fence, fills.cfg.Files
	r := replicas.New(replicas.Config{
		Node: cfg.Node, Store: cfg.Store, Write: fence.WriteSpare, Put: fence.Write, Of: stores.Of, Rate: cfg.Copying, Plan: cfg.Plan,
		Manifest: func(ds cluster.Dataset) (*manifest.Table, bool) {
			x, ok := tables.get(ds.ID)
			return x.table, ok && x.digest == ds.Digest
		},
		Stored: func(p fill.PieceID) bool {
			x, _ := fills.get(p.Ino.Dataset())
			return x != nil && x.HasPiece(p)
		},
		Coming: func(p fill.PieceID) bool {
			x, _ := fills.get(p.Ino.Dataset())
			return x != nil && x.Fetching(p)
		},
		Sums: files.pieceSums, Compare: fills.compare,
	})
	fills.replicas = r
	cfg.Store.SetSpare(r)
	return r
}

// Handlers returns the handlers for calls from other nodes.
func (d *Datasets) Handlers() node.Handlers {
	h := node.Handlers{}
	for _, part := range []node.Handlers{d.Files.Handlers(), d.Fills.Handlers(), d.Server.Handlers(), d.Verifier.Handlers()} {
		maps.Copy(h, part)
	}
	return h
}
