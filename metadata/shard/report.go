package shard

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// reportLoop reports the shards here to their homes: inactive shards at once, changes after a delay, several together.
func (d *Manager) reportLoop(ctx context.Context) {
	later := make(map[metadata.Ino]bool)
	var due <-chan time.Time // when to report the shards in later; nil while it is empty
	for {
		var now []metadata.Ino
		select {
		case <-ctx.Done():
			return
		case <-due:
			due = nil
			for dir := range later {
				now = append(now, dir)
			}
			clear(later)
		case <-d.s.Changed():
			for _, dir := range d.s.ChangedShards() {
				if d.s.ShardPending(dir) && !later[dir] {
					now = append(now, dir)
				} else {
					later[dir] = true
				}
			}
		}
		for _, dir := range d.reportAll(ctx, now) {
			later[dir] = true
		}
		if due == nil && len(later) > 0 {
			due = time.After(d.cfg.Delay)
		}
	}
}

// reportAll reports dirs, and returns the directories whose reports must be repeated.
func (d *Manager) reportAll(ctx context.Context, dirs []metadata.Ino) []metadata.Ino {
	again := make([]bool, len(dirs))
	var g errgroup.Group
	g.SetLimit(16)
	for i, dir := range dirs {
		g.Go(func() error {
			again[i] = d.report(ctx, dir)
			return nil
		})
	}
	_ = g.Wait() // failed reports are repeated
	var left []metadata.Ino
	for i, dir := range dirs {
		if again[i] {
			left = append(left, dir)
		}
	}
	return left
}

// report reports the shard of dir here and applies the answer.
func (d *Manager) report(ctx context.Context, dir metadata.Ino) (again bool) {
	r, err := d.s.ShardReport(dir)
	if errors.Is(err, syscall.ENOENT) {
		return false
	}
	var a metadata.ShardAnswer
	if err == nil {
		err = d.call(ctx, dir.Home(), func(ctx context.Context, s metadata.Shards, _ metadata.NodeID) (err error) {
			a, err = s.ReportShard(ctx, d.cfg.Self, r)
			return err
		})
	}
	if err == nil {
		err = d.s.ApplyAnswer(r, a)
	}
	if err != nil {
		d.cfg.Log.WithError(err).WithField("dir", dir.String()).Debug("shard report failed; it is repeated")
		return true
	}
	return a.State == metadata.ShardWait
}

// ReportAll makes all shards here report, because this node was away and may have missed orders.
func (d *Manager) ReportAll() {
	for _, dir := range d.s.ShardDirs() {
		d.s.MarkChanged(dir)
	}
}

// Follow calls ReportAll whenever this home becomes Up in the map again, on its node or on its stand-in, until ctx
// ends. next waits for a map newer than the given epoch.
func (d *Manager) Follow(ctx context.Context, next func(context.Context, metadata.Epoch) (cluster.Map, error)) {
	var seen struct {
		at    metadata.NodeID
		since metadata.Epoch
	}
	for m := d.cfg.Map(); ; {
		at, _ := m.HomeAt(d.cfg.Self)
		now := seen
		if n, ok := m.Node(at); ok && n.State == cluster.Up {
			now.at, now.since = at, n.Since
		}
		if now != seen {
			seen = now
			d.ReportAll()
		}
		var err error
		if m, err = next(ctx, m.Epoch); err != nil {
			return
		}
	}
}

// Report reports all shards here now. When it returns nil, the attributes of the directories include the changes.
func (d *Manager) Report(ctx context.Context) error {
	left := d.reportAll(ctx, d.s.ShardDirs())
	if len(left) > 0 {
		return fmt.Errorf("shards of %d directories wait for their homes: %w", len(left), syscall.EAGAIN)
	}
	return nil
}
