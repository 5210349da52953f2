package wide

import (
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

// Config says whose directories these are. Store, Peer and Map are required.
type Config struct {
	Self  metadata.NodeID
	Store *pebblestore.Store
	Peer  func(metadata.NodeID) metadata.Sections
	Map   func() cluster.Map
	Log   *logrus.Entry
	Delay time.Duration // until a section reports a change; 100 ms
	Call  time.Duration // bounds one call to another node; 5 s
	// Leases is how long an entry may be leased by its node. While a directory
	// is being spread none is, and it is shut when those of before are over,
	// because the node that has the entry then knows nothing of them.
	Leases time.Duration
}

func (c *Config) setDefaults() {
	if c.Delay == 0 {
		c.Delay = 100 * time.Millisecond
	}
	if c.Call == 0 {
		c.Call = 5 * time.Second
	}
	if c.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		c.Log = logrus.NewEntry(l)
	}
}

// Directories is the wide directories of a node: those whose home it is, and
// those of which it keeps a section.
type Directories struct {
	cfg Config
	s   *pebblestore.Store
}

// New makes the wide directories of a node; Run makes them work.
func New(cfg Config) *Directories {
	cfg.setDefaults()
	return &Directories{cfg: cfg, s: cfg.Store}
}

// Run spreads what becomes large and reports what changes, until ctx ends.
func (d *Directories) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { d.reportLoop(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.s.Full():
		}
		for _, dir := range d.s.FullDirs() {
			if err := d.Spread(ctx, dir); err != nil && ctx.Err() == nil {
				d.cfg.Log.WithError(err).WithField("dir", dir.String()).Warn("a large directory stays on its node for now")
			}
		}
	}
}

const (
	entriesAtOnce = 2048 // that are looked at for one message to each node
	fewChanges    = 64   // that are left for the time when the directory is shut
	mostRounds    = 16   // of sending changes before the directory is shut all the same
)

// Spread makes dir wide, if that is due.
func (d *Directories) Spread(ctx context.Context, dir metadata.Ino) error {
	m := d.cfg.Map()
	to := m.Spread(m.Epoch)
	if len(to.Nodes) < 2 || !slices.Contains(to.Nodes, d.cfg.Self) {
		return nil
	}
	sp, err := d.s.Spread(dir, to)
	if sp == nil || err != nil {
		return err
	}
	leased := time.After(d.cfg.Leases)
	begin, err := sp.Section()
	if err == nil {
		err = d.fillAll(ctx, sp, begin, leased)
	}
	if err == nil {
		err = sp.Commit()
	}
	if err != nil {
		sp.Cancel()
		d.order(context.WithoutCancel(ctx), begin.Nodes, metadata.SectionChange{Section: begin.Section, Order: metadata.SectionDrop})
		return err
	}
	d.cfg.Log.WithFields(logrus.Fields{"dir": dir.String(), "epoch": to.Epoch, "nodes": len(to.Nodes)}).Info("a directory is wide")
	a, err := d.s.Getattr(ctx, dir)
	if err == nil {
		d.order(ctx, to.Nodes, metadata.SectionChange{Section: begin.Section, Order: metadata.SectionOpen, Attr: a})
	}
	return nil // who does not hear of it will ask
}

// fillAll brings the sections to the state of the directory, and shuts it when
// leased says so.
func (d *Directories) fillAll(ctx context.Context, sp *pebblestore.Spreading, begin metadata.NewSection, leased <-chan time.Time) error {
	err := d.each(ctx, begin.Nodes, func(ctx context.Context, s metadata.Sections, _ metadata.NodeID) error {
		return s.MakeSection(ctx, begin)
	})
	for after, more := "", true; err == nil && more; more = after != "" {
		var part map[metadata.NodeID][]metadata.Entry
		if part, after, err = sp.Entries(after, entriesAtOnce); err == nil {
			err = d.fill(ctx, begin.Section, part)
		}
	}
	select {
	case <-leased:
	case <-ctx.Done():
		return ctx.Err()
	}
	for few, round := false, 0; err == nil && !few && round < mostRounds; round++ {
		few, err = d.fillChanged(ctx, sp, begin.Section)
	}
	if err != nil {
		return err
	}
	sp.Shut()
	if err := d.promised(ctx, sp); err != nil {
		return err
	}
	for more := true; err == nil && more; {
		var part map[metadata.NodeID][]metadata.Entry
		if part, more, err = sp.Changed(entriesAtOnce); err == nil {
			err = d.fill(ctx, begin.Section, part)
		}
	}
	return err
}

// promised waits for the transactions in a directory that was shut. One whose
// coordinator does not answer can take long: then it is tried another time.
func (d *Directories) promised(ctx context.Context, sp *pebblestore.Spreading) error {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Call)
	defer cancel()
	return sp.Promised(ctx)
}

// fillChanged sends what has changed; few means that it is time to shut.
func (d *Directories) fillChanged(ctx context.Context, sp *pebblestore.Spreading, sec metadata.Section) (few bool, err error) {
	part, more, err := sp.Changed(entriesAtOnce)
	if err != nil {
		return false, err
	}
	n := 0
	for _, es := range part {
		n += len(es)
	}
	return !more && n < fewChanges, d.fill(ctx, sec, part)
}

func (d *Directories) fill(ctx context.Context, sec metadata.Section, part map[metadata.NodeID][]metadata.Entry) error {
	nodes := make([]metadata.NodeID, 0, len(part))
	for id := range part {
		nodes = append(nodes, id)
	}
	return d.each(ctx, nodes, func(ctx context.Context, s metadata.Sections, id metadata.NodeID) error {
		return s.FillSection(ctx, sec, part[id])
	})
}

// each calls fn for the nodes but this one, some at once, and returns the first
// error. A node that is Down is one.
func (d *Directories) each(ctx context.Context, nodes []metadata.NodeID, fn func(context.Context, metadata.Sections, metadata.NodeID) error) error {
	var g errgroup.Group
	g.SetLimit(16)
	for _, id := range nodes {
		if id != d.cfg.Self {
			g.Go(func() error { return d.call(ctx, id, fn) })
		}
	}
	return g.Wait()
}

func (d *Directories) call(ctx context.Context, id metadata.NodeID, fn func(context.Context, metadata.Sections, metadata.NodeID) error) error {
	n, ok := d.cfg.Map().Node(id)
	if !ok || n.State == cluster.Down {
		return fmt.Errorf("node %d is down: %w", id, syscall.EHOSTDOWN)
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Call)
	defer cancel()
	if err := fn(ctx, d.cfg.Peer(id), id); err != nil {
		return fmt.Errorf("section on node %d: %w", id, err)
	}
	return nil
}

// order sends an order that nobody waits for: who misses it asks.
func (d *Directories) order(ctx context.Context, nodes []metadata.NodeID, c metadata.SectionChange) {
	if err := d.change(ctx, nodes, c); err != nil {
		d.cfg.Log.WithError(err).WithField("dir", c.Dir.String()).Debug("a section did not hear an order")
	}
}

func (d *Directories) change(ctx context.Context, nodes []metadata.NodeID, c metadata.SectionChange) error {
	return d.each(ctx, nodes, func(ctx context.Context, s metadata.Sections, _ metadata.NodeID) error {
		return s.ChangeSection(ctx, c)
	})
}

const (
	foldPatience = 10 * time.Second // for what is under way in the same directory
	foldPause    = 10 * time.Millisecond
)

// Fold makes a wide directory of this node that is empty one that is not wide.
// ENOTEMPTY if it is not, EIO if that cannot be found out. One that is not wide
// stays as it is.
func (d *Directories) Fold(ctx context.Context, dir metadata.Ino) error {
	ctx, cancel := context.WithTimeout(ctx, foldPatience)
	defer cancel()
	for {
		err := d.fold(ctx, dir)
		if !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(foldPause):
		}
	}
}

func (d *Directories) fold(ctx context.Context, dir metadata.Ino) error {
	f, err := d.s.Fold(dir)
	if f == nil || err != nil {
		return err
	}
	nodes := f.Nodes()
	err = d.change(ctx, nodes, f.Order(metadata.SectionFreeze))
	if err == nil {
		err = f.Commit()
	}
	rest := context.WithoutCancel(ctx)
	if err != nil {
		f.Cancel()
		d.order(rest, nodes, f.Order(metadata.SectionThaw))
	} else {
		d.order(rest, nodes, f.Order(metadata.SectionDrop))
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

// Inherit tells the sections of dir, whose home this is, its attributes.
func (d *Directories) Inherit(ctx context.Context, dir metadata.Ino, a metadata.Attr) {
	if sec, nodes := d.s.Sections(dir); len(nodes) > 0 {
		d.order(ctx, nodes, metadata.SectionChange{Section: sec, Order: metadata.SectionAttr, Attr: a})
	}
}
