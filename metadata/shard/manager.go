package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
)

// Config configures a Manager. Store, Peer and Map are required.
type Config struct {
	Self  metadata.NodeID
	Store *pebblestore.Store
	Peer  func(metadata.NodeID) metadata.Shards
	Map   func() cluster.Map
	Log   *logrus.Entry
	Delay time.Duration // until a shard reports a change; 100 ms
	Call  time.Duration // bounds one call to another node; 5 s
	// EndLeases recalls the leases on a directory and its entries. During a split no lease is granted; the earlier ones
	// must have ended before the directory freezes, because the new node of an entry does not know them.
	EndLeases func(ctx context.Context, dir metadata.Ino)
}

func (c *Config) setDefaults() {
	c.Delay = cmp.Or(c.Delay, 100*time.Millisecond)
	c.Call = cmp.Or(c.Call, 5*time.Second)
	if c.EndLeases == nil {
		c.EndLeases = func(context.Context, metadata.Ino) {}
	}
	c.Log = cmp.Or(c.Log, logrus.NewEntry(&logrus.Logger{Out: io.Discard}))
}

// Manager splits and merges the directories of a node, and reports its shards.
type Manager struct {
	cfg   Config
	s     *pebblestore.Store
	whole sync.Map // directories whose split is too large for the mirror of the store

	mu     sync.Mutex
	doubts []func(context.Context) error // under mu: commits that may have taken effect, to repeat
	doubt  chan struct{}                 // signals a new entry in doubts; capacity 1
}

// New returns the manager of a node; Run starts it.
func New(cfg Config) *Manager {
	cfg.setDefaults()
	return &Manager{cfg: cfg, s: cfg.Store, doubt: make(chan struct{}, 1)}
}

// Run splits directories that become large, and reports changed shards, until ctx ends.
func (d *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { d.reportLoop(ctx) })
	wg.Go(func() { d.settleLoop(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.s.Full():
		}
		for _, dir := range d.s.FullDirs() {
			err := d.Split(ctx, dir)
			log := d.cfg.Log.WithError(err).WithField("dir", dir.String())
			switch {
			case err == nil || ctx.Err() != nil:
			case errors.Is(err, metadata.ErrUnknownOutcome):
				log.Warn("large directory may be split: its names cannot be changed until the node with the copy of the names answers")
			case errors.Is(err, syscall.EMSGSIZE):
				log.Warn("large directory not split; it stays on its home: its split is too large for the copy of names on another node")
			default:
				log.Warn("large directory not split; it stays on its home and is retried as it grows")
			}
		}
	}
}

const (
	batchEntries = 2048 // entries of one batch
	fewChanges   = 64   // changes that may be left for the freeze
	maxRounds    = 16   // rounds of copying changes before the freeze
)

// Split splits dir, if it is large enough.
func (d *Manager) Split(ctx context.Context, dir metadata.Ino) error {
	m := d.cfg.Map()
	to := m.ShardMap(m.Epoch)
	if len(to.Nodes) < 2 || !slices.Contains(to.Nodes, d.cfg.Self) {
		return nil
	}
	if _, ok := d.whole.Load(dir); ok {
		return nil
	}
	sp, err := d.s.BeginSplit(dir, to)
	if sp == nil || err != nil {
		return err
	}
	begin, err := sp.Shard()
	if err == nil {
		err = d.copyAll(ctx, sp, begin)
	}
	if err == nil {
		commit := func(ctx context.Context) error { return d.commitSplit(ctx, sp, begin) }
		if err = commit(ctx); errors.Is(err, metadata.ErrUnknownOutcome) {
			d.repeat(commit)
			return err
		}
	}
	if err != nil {
		if errors.Is(err, syscall.EMSGSIZE) {
			d.whole.Store(dir, nil)
		}
		sp.Cancel()
		d.order(context.WithoutCancel(ctx), begin.Nodes, metadata.ShardChange{Shard: begin.Shard, Order: metadata.ShardDrop})
	}
	return err
}

// commitSplit commits a split, and activates its shards.
func (d *Manager) commitSplit(ctx context.Context, sp *pebblestore.Split, begin metadata.NewShard) error {
	if err := sp.Commit(); err != nil {
		return err
	}
	d.cfg.Log.WithFields(logrus.Fields{"dir": begin.Dir.String(), "epoch": begin.Epoch, "nodes": len(begin.Nodes)}).Info("directory split over nodes")
	if a, err := d.s.Getattr(ctx, begin.Dir); err == nil {
		d.order(ctx, begin.Nodes, metadata.ShardChange{Shard: begin.Shard, Order: metadata.ShardActivate, Attr: a})
	}
	return nil // a shard that misses the order asks
}

// copyAll copies the entries to the shards, ends the leases, and freezes the directory.
func (d *Manager) copyAll(ctx context.Context, sp *pebblestore.Split, begin metadata.NewShard) error {
	err := d.each(ctx, begin.Nodes, func(ctx context.Context, s metadata.Shards, _ metadata.NodeID) error {
		return s.CreateShard(ctx, begin)
	})
	for after, more := "", true; err == nil && more; more = after != "" {
		var part map[metadata.NodeID][]metadata.Entry
		if part, after, err = sp.Entries(after, batchEntries); err == nil {
			err = d.copyEntries(ctx, begin.Shard, part)
		}
	}
	if err == nil {
		d.cfg.EndLeases(ctx, begin.Dir)
	}
	for few, round := false, 0; err == nil && !few && round < maxRounds; round++ {
		few, err = d.copyChanged(ctx, sp, begin.Shard)
	}
	if err != nil {
		return err
	}
	sp.Freeze()
	if err := d.awaitTransactions(ctx, sp); err != nil {
		return err
	}
	for more := true; err == nil && more; {
		var part map[metadata.NodeID][]metadata.Entry
		if part, more, err = sp.Changed(batchEntries); err == nil {
			err = d.copyEntries(ctx, begin.Shard, part)
		}
	}
	return err
}

// awaitTransactions waits for the transactions on a frozen directory. If one takes too long, because its coordinator
// does not reply, the split is retried later.
func (d *Manager) awaitTransactions(ctx context.Context, sp *pebblestore.Split) error {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Call)
	defer cancel()
	return sp.AwaitTransactions(ctx)
}

// copyChanged copies changed entries; few means that the directory can be frozen.
func (d *Manager) copyChanged(ctx context.Context, sp *pebblestore.Split, sec metadata.Shard) (few bool, err error) {
	part, more, err := sp.Changed(batchEntries)
	if err != nil {
		return false, err
	}
	n := 0
	for _, es := range part {
		n += len(es)
	}
	return !more && n < fewChanges, d.copyEntries(ctx, sec, part)
}

func (d *Manager) copyEntries(ctx context.Context, sec metadata.Shard, part map[metadata.NodeID][]metadata.Entry) error {
	nodes := make([]metadata.NodeID, 0, len(part))
	for id := range part {
		nodes = append(nodes, id)
	}
	return d.each(ctx, nodes, func(ctx context.Context, s metadata.Shards, id metadata.NodeID) error {
		return s.FillShard(ctx, sec, part[id])
	})
}

// each calls fn for the other homes, several in parallel, and returns the first error. A lost home is an error.
func (d *Manager) each(ctx context.Context, nodes []metadata.NodeID, fn func(context.Context, metadata.Shards, metadata.NodeID) error) error {
	var g errgroup.Group
	g.SetLimit(16)
	for _, id := range nodes {
		if id != d.cfg.Self {
			g.Go(func() error { return d.call(ctx, id, fn) })
		}
	}
	return g.Wait()
}

func (d *Manager) call(ctx context.Context, id metadata.NodeID, fn func(context.Context, metadata.Shards, metadata.NodeID) error) error {
	if _, ok := d.cfg.Map().HomeAt(id); !ok {
		return fmt.Errorf("node %d is down: %w", id, syscall.EHOSTDOWN)
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Call)
	defer cancel()
	if err := fn(ctx, d.cfg.Peer(id), id); err != nil {
		return fmt.Errorf("shard on node %d: %w", id, err)
	}
	return nil
}

// order sends an order; a shard that misses the order asks.
func (d *Manager) order(ctx context.Context, nodes []metadata.NodeID, c metadata.ShardChange) {
	if err := d.change(ctx, nodes, c); err != nil {
		d.cfg.Log.WithError(err).WithField("dir", c.Dir.String()).Debug("order not delivered to a shard; it will ask")
	}
}

func (d *Manager) change(ctx context.Context, nodes []metadata.NodeID, c metadata.ShardChange) error {
	return d.each(ctx, nodes, func(ctx context.Context, s metadata.Shards, _ metadata.NodeID) error {
		return s.ChangeShard(ctx, c)
	})
}

const (
	mergeTimeout = 10 * time.Second // for operations in progress in the directory
	mergePause   = 10 * time.Millisecond
)

// Merge makes an empty sharded directory of this node unsharded. It returns ENOTEMPTY if the directory has entries, and
// EIO if that is unknown. It does nothing for an unsharded directory.
func (d *Manager) Merge(ctx context.Context, dir metadata.Ino) error {
	ctx, cancel := context.WithTimeout(ctx, mergeTimeout)
	defer cancel()
	for {
		err := d.merge(ctx, dir)
		if !errors.Is(err, syscall.EAGAIN) || errors.Is(err, metadata.ErrUnknownOutcome) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(mergePause):
		}
	}
}

func (d *Manager) merge(ctx context.Context, dir metadata.Ino) error {
	f, err := d.s.BeginMerge(dir)
	if f == nil || err != nil {
		return err
	}
	nodes := f.Nodes()
	err = d.change(ctx, nodes, f.Order(metadata.ShardFreeze))
	if err == nil {
		commit := func(ctx context.Context) error {
			err := f.Commit()
			if err == nil {
				d.order(context.WithoutCancel(ctx), nodes, f.Order(metadata.ShardDrop))
			}
			return err
		}
		if err = commit(ctx); errors.Is(err, metadata.ErrUnknownOutcome) {
			d.repeat(commit)
			return fmt.Errorf("directory %v: %w", dir, err)
		}
	}
	if err != nil {
		f.Cancel()
		d.order(context.WithoutCancel(ctx), nodes, f.Order(metadata.ShardThaw))
	}
	for _, e := range []error{syscall.ENOTEMPTY, syscall.EAGAIN} {
		if errors.Is(err, e) {
			return fmt.Errorf("directory %v: %w", dir, e)
		}
	}
	if err != nil {
		return fmt.Errorf("directory %v: %w: %w", dir, syscall.EIO, err)
	}
	return nil
}

// SetAttr sends the attributes of dir, whose home this is, to its shards.
func (d *Manager) SetAttr(ctx context.Context, dir metadata.Ino, a metadata.Attr) {
	if sec, nodes := d.s.Shards(dir); len(nodes) > 0 {
		d.order(ctx, nodes, metadata.ShardChange{Shard: sec, Order: metadata.ShardSetAttr, Attr: a})
	}
}
