package route

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/cache"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Config says what a Router routes between.
type Config struct {
	Self metadata.NodeID // rpc.NoNode without a share
	// Local and LocalData are the share of this node; nil without one.
	Local     metadata.NodeStore
	LocalData datapath.Store
	// Meta and Data make the stubs of the other nodes, once for each node.
	Meta func(metadata.NodeID) metadata.NodeStore
	Data func(metadata.NodeID) datapath.Store
	View func() cluster.View
	// Replicas appends to buf the nodes that have a replica of a chunk of the file ino, which owner owns. If it is nil,
	// there are no replicas.
	Replicas func(buf []metadata.NodeID, ino metadata.Ino, chunk uint32, owner metadata.NodeID) []metadata.NodeID
}

// Router finds the node for a call.
type Router struct {
	cfg    Config
	meta   *cache.Stubs[metadata.NodeStore]
	data   *cache.Stubs[datapath.Store]
	away   *cache.Stubs[metadata.NodeStore] // stubs of this node's home, if another node stands in for it
	here   func() error                     // returns why Local cannot be used
	shards cluster.ShardTable
	pairs  *lru.Cache[pair, []metadata.NodeID] // orders of files with two copies: by Slurm's topology, which is slow

	local, remote atomic.Int64 // metadata calls
}

// pair identifies the node pair of the local files of node that were created in epoch.
type pair struct {
	node  metadata.NodeID
	epoch metadata.Epoch
}

// maxPairs bounds the remembered pairs.
const maxPairs = 1 << 12

// New returns a Router. It connects to nothing.
func New(cfg Config) *Router {
	r := &Router{cfg: cfg, meta: cache.NewStubs(cfg.Meta), data: cache.NewStubs(cfg.Data)}
	r.pairs, _ = lru.New[pair, []metadata.NodeID](maxPairs) // it fails only for a size of 0
	r.away, r.here = cache.NewStubs(cfg.Meta), func() error { return nil }
	if h, ok := cfg.Local.(interface{ Here() error }); ok {
		r.here = h.Here
	}
	if cfg.Local != nil {
		r.meta.Put(cfg.Self, cfg.Local)
		r.data.Put(cfg.Self, cfg.LocalData)
	}
	return r
}

// Calls returns how many metadata calls were routed to this node and to others.
func (r *Router) Calls() (local, remote int64) { return r.local.Load(), r.remote.Load() }

// Map returns the current cluster map.
func (r *Router) Map() cluster.Map { return r.cfg.View().Map }

// Home returns the store that keeps the live inode ino.
func (r *Router) Home(ino metadata.Ino) (metadata.NodeStore, error) {
	s, err := r.Meta(ino.Home())
	if err != nil {
		return nil, fmt.Errorf("inode %v: %w", ino, err)
	}
	return s, nil
}

// Meta returns the metadata of a node.
func (r *Router) Meta(id metadata.NodeID) (metadata.NodeStore, error) {
	s, local, err := r.home(id)
	switch {
	case err != nil:
	case local:
		r.local.Add(1)
	default:
		r.remote.Add(1)
	}
	return s, err
}

// home returns the store of a home: Local, or that of another node, which may stand in for the node id.
func (r *Router) home(id metadata.NodeID) (s metadata.NodeStore, local bool, err error) {
	if id == r.cfg.Self {
		err := r.here()
		if err == nil || !r.replaced(id) {
			return r.meta.Get(id), true, err
		}
	}
	if err := r.HomeAlive(id); err != nil {
		return nil, false, err
	}
	if id == r.cfg.Self {
		return r.away.Get(id), false, nil
	}
	return r.meta.Get(id), false, nil
}

// Background is Meta for a call that no operation waits for. It is not counted.
func (r *Router) Background(id metadata.NodeID) (metadata.NodeStore, error) {
	s, _, err := r.home(id)
	return s, err
}

// replaced reports whether another node stands in for the home of id.
func (r *Router) replaced(id metadata.NodeID) bool {
	n, _ := r.Map().Node(id)
	return n.Partner.StandsIn
}

// Data returns the file data of a node.
func (r *Router) Data(id metadata.NodeID) (datapath.Store, error) {
	if n, ok := r.Map().Node(id); id != r.cfg.Self && (!ok || n.State == cluster.Down) {
		return nil, lost(n, ok, id)
	}
	return r.data.Get(id), nil
}

// HomeAlive returns EHOSTDOWN for a home that the cluster map has given up and for which no other node stands in.
func (r *Router) HomeAlive(id metadata.NodeID) error {
	if id == r.cfg.Self && !r.replaced(id) {
		return nil
	}
	m := r.Map()
	at, ok := m.HomeAt(id)
	if ok {
		return nil
	}
	n, ok := m.Node(at)
	return lost(n, ok, at)
}

func lost(n cluster.Node, known bool, id metadata.NodeID) error {
	if !known {
		return fmt.Errorf("node %d is not in the cluster map: %w", id, syscall.ESTALE)
	}
	return fmt.Errorf("node %s is down: %w", n.Host, syscall.EHOSTDOWN)
}

const (
	epochWait = 5 * time.Second // for a cluster map that another node already has
	epochPoll = 5 * time.Millisecond
)

// MapOf returns the cluster map of the epoch e or a later one. If another node has that map and this one does not, it
// waits for it.
func (r *Router) MapOf(ctx context.Context, e metadata.Epoch) (cluster.Map, error) {
	m := r.Map()
	if e <= m.Epoch {
		return m, nil
	}
	ctx, cancel := context.WithTimeout(ctx, epochWait)
	defer cancel()
	t := time.NewTicker(epochPoll)
	defer t.Stop()
	for {
		if m := r.Map(); m.Epoch >= e {
			return m, nil
		}
		select {
		case <-ctx.Done():
			return cluster.Map{}, fmt.Errorf("map of epoch %d: %w", e, wait.Errno(ctx))
		case <-t.C:
		}
	}
}

// Order returns the nodes of a file's stripe, by the map of the epoch in which the file was created.
func (r *Router) Order(ctx context.Context, ino metadata.Ino, l metadata.Layout) ([]metadata.NodeID, error) {
	if l.Kind == metadata.Overflow {
		return []metadata.NodeID{r.cfg.Self}, nil // the reader fetches it from the source
	}
	m := r.Map()
	if l.Epoch > m.Epoch && (l.Kind != metadata.Local || l.Copied()) {
		var err error
		if m, err = r.MapOf(ctx, l.Epoch); err != nil {
			return nil, fmt.Errorf("inode %v: %w", ino, err)
		}
	}
	p, paired := pair{l.Node, l.Epoch}, l.Kind == metadata.Local && l.Copied() && l.Epoch > 0 && !ino.Sealed()
	if paired {
		if order, ok := r.pairs.Get(p); ok {
			return order, nil
		}
	}
	order := m.Order(ino, l)
	if len(order) == 0 {
		return nil, fmt.Errorf("inode %v: no node was up in epoch %d: %w", ino, l.Epoch, syscall.EIO)
	}
	if paired {
		r.pairs.Add(p, order)
	}
	return order, nil
}

// Where appends to buf the nodes that have the byte at pos of the dataset file a, which owner owns: the owner, or its
// stand-in if it was lost, and the holders of replicas.
func (r *Router) Where(buf []metadata.NodeID, a *metadata.Attr, owner metadata.NodeID, pos int64) []metadata.NodeID {
	m := r.Map()
	holder := m.Holder(a.Ino, owner)
	buf = append(buf, holder)
	if r.cfg.Replicas == nil {
		return buf
	}
	chunk := uint32(0)
	if a.Layout.Kind != metadata.Local {
		chunk = uint32(pos / a.Layout.Chunk())
	}
	all := r.cfg.Replicas(buf, a.Ino, chunk, owner)
	replicas := slices.DeleteFunc(all[len(buf):], func(id metadata.NodeID) bool { return id == holder })
	return all[:len(buf)+len(replicas)]
}

// CopiesOf returns where a part of a file with copies is now (cluster.Map.CopiesOf).
func (r *Router) CopiesOf(p cluster.Part) cluster.Copies { return r.Map().CopiesOf(p) }

// Copies returns how many copies there are of the part of the file a that has the fewest.
func (r *Router) Copies(ctx context.Context, a metadata.Attr) (int, error) {
	if !a.Object().Copied() {
		return 1, nil
	}
	order, err := r.Order(ctx, a.Ino, a.Layout)
	if err != nil {
		return 0, err
	}
	least := metadata.MaxCopies
	for _, p := range cluster.Parts(a.Ino, a.Layout, order) {
		least = min(least, len(r.Map().CurrentOf(p)))
	}
	return least, nil
}

// Hosts returns the names of the nodes that hold the data of the file a, in the order of its stripe: with copies those
// whose copies count, and for a whole dataset file also the holders of replicas; "source" for a file that is read
// through from the source.
func (r *Router) Hosts(ctx context.Context, a metadata.Attr) ([]string, error) {
	if a.Layout.Kind == metadata.Overflow {
		return []string{"source"}, nil
	}
	order, err := r.Order(ctx, a.Ino, a.Layout)
	if err != nil {
		return nil, err
	}
	if a.Ino.Sealed() && a.Layout.Kind == metadata.Local && r.cfg.Replicas != nil {
		order = r.cfg.Replicas(order, a.Ino, 0, order[0])
	}
	m := r.Map()
	if a.Object().Copied() {
		parts := cluster.Parts(a.Ino, a.Layout, order)
		order = nil
		for _, p := range parts {
			order = append(order, m.CurrentOf(p)...)
		}
	}
	hosts := make([]string, len(order))
	for i, id := range order {
		n, _ := m.Node(id)
		hosts[i] = n.Host
	}
	return hosts, nil
}
