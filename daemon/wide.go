package daemon

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/leases"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/shard"
)

// defaultWideAt is how many entries a directory has when it is spread.
const defaultWideAt = 8192

// newWide is the wide directories of this node.
func (d *Daemon) newWide(s *pebblestore.Store) *shard.Manager {
	return shard.New(shard.Config{
		Self: d.job.Self, Store: s, Map: func() cluster.Map { return d.View().Map },
		Peer: func(id metadata.NodeID) metadata.Shards { return d.cfg.Sections(d.peers.To(id)) },
		Log:  d.log.WithField("part", "wide"), Leases: leases.Term + slack,
	})
}

// startWide makes the node's large directories wide from now on.
func (d *Daemon) startWide() {
	d.Spawn(d.meta.wide.Run)
	d.Spawn(func(ctx context.Context) { d.meta.wide.Follow(ctx, d.nextMap) })
}

// nextMap waits for a map of another epoch than e.
func (d *Daemon) nextMap(ctx context.Context, e metadata.Epoch) (cluster.Map, error) {
	var m cluster.Map
	err := d.Until(ctx, func(v cluster.View) bool {
		m = v.Map
		return m.Epoch != e
	})
	return m, err
}

// unfolded runs fn, and once more after the wide directory in whose way it was
// has been folded. What another one has put in again is ENOTEMPTY.
func (h *home) unfolded(ctx context.Context, fn func() error) error {
	err := fn()
	var in *pebblestore.ShardedError
	if !errors.As(err, &in) {
		return err
	}
	if err := h.wide.Merge(ctx, in.Dir); err != nil {
		return err
	}
	if err = fn(); errors.As(err, &in) {
		return fmt.Errorf("directory %v: %w", in.Dir, syscall.ENOTEMPTY)
	}
	return err
}

// inherited is what the entries of a directory inherit.
const inherited = metadata.SetMode | metadata.SetUID | metadata.SetGID |
	metadata.SetLayout | metadata.SetLayoutKind | metadata.SetChunkSize

// Setattr is metadata.Inodes. The sections of a wide directory know of a change
// of what they give on when it returns.
func (h *home) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	a, err := h.set(ctx, ino, c)
	if err == nil && c.Set&inherited != 0 && a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		h.wide.Inherit(ctx, ino, a)
	}
	return a, err
}

// sectionHandlers are what the nodes of wide directories do for each other.
func (d *Daemon) sectionHandlers() map[wire.Op]rpc.Handler {
	m := d.leased
	return map[wire.Op]rpc.Handler{
		wire.OpShardCreate: ofHome(func(ctx context.Context, q *wire.ShardCreateReq) (metadata.Ino, func() error) {
			return q.Dir, func() error { return m.CreateShard(ctx, q.NewShard) }
		}),
		wire.OpShardFill: ofHome(func(ctx context.Context, q *wire.ShardFillReq) (metadata.Ino, func() error) {
			return q.Dir, func() error { return m.FillShard(ctx, q.Shard, q.Entries) }
		}),
		wire.OpShardChange: ofHome(func(ctx context.Context, q *wire.ShardChangeReq) (metadata.Ino, func() error) {
			return q.Dir, func() error { return m.ChangeShard(ctx, q.ShardChange) }
		}),
		wire.OpShardReport: func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
			var q wire.ShardReportReq
			if err := wire.Parse(r.Body, &q); err != nil {
				return err
			}
			a, err := m.ReportShard(ctx, r.Peer, q.ShardReport)
			if err == nil {
				resp.Body = &wire.ShardReportResp{ShardAnswer: a}
			}
			return err
		},
		wire.OpShardRead: node.Handle(func(ctx context.Context, q *wire.ShardReadReq) (node.Appender, error) {
			if q.Limit > wire.MaxEntries {
				return nil, fmt.Errorf("read of %d entries: %w", q.Limit, syscall.EINVAL)
			}
			es, err := m.ReadShard(ctx, q.Dir, q.Epoch, q.After, int(q.Limit))
			if err != nil {
				return nil, err
			}
			return &wire.EntriesResp{Entries: es}, nil
		}),
	}
}

// ofHome makes a handler of what only the home of a directory may ask.
func ofHome[T any, P node.Parser[T]](f func(ctx context.Context, q *T) (metadata.Ino, func() error)) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, _ *rpc.Response) error {
		var q T
		if err := wire.Parse(r.Body, P(&q)); err != nil {
			return err
		}
		dir, do := f(ctx, &q)
		if dir.Home() != r.Peer {
			return fmt.Errorf("directory %v: node %d is not its home: %w", dir, r.Peer, syscall.EPERM)
		}
		return do()
	}
}

// elsewhere gives an error that says where an entry is its body.
func elsewhere(h rpc.Handler) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		err := h(ctx, r, resp)
		var e *metadata.Redirect
		if errors.As(err, &e) {
			resp.Body = &wire.RedirectResp{Redirect: *e}
		}
		return err
	}
}

// ReportSections tells the homes of wide directories at once what was done to
// their entries here, which they hear a moment later anyway.
func (d *Daemon) ReportSections(ctx context.Context) error { return d.meta.wide.Report(ctx) }
