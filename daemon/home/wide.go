package home

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
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/shard"
)

// defaultSplitAt is how many entries a directory has when it is split. On four nodes an unlink in a
// directory of 100,000 entries takes a fifth of the time if it is not split: an entry that was moved is
// on another node than its inode. See the figure largedir of make bench.
const defaultSplitAt = 1 << 17

func (s *Server) newWide(st *pebblestore.Store) *shard.Manager {
	return shard.New(shard.Config{
		Self: s.node.Self(), Store: st, Map: func() cluster.Map { return s.node.View().Map },
		Peer: s.cfg.Shards, Log: s.log.WithField("part", "wide"), EndLeases: func(ctx context.Context, dir metadata.Ino) { s.leased.endLeases(ctx, dir) },
	})
}

// startWide starts splitting the node's large directories.
func (s *Server) startWide() {
	s.node.Spawn(s.wide.Run)
	s.node.Spawn(func(ctx context.Context) { s.wide.Follow(ctx, s.nextMap) })
}

// nextMap waits for a map of another epoch than e.
func (s *Server) nextMap(ctx context.Context, e metadata.Epoch) (cluster.Map, error) {
	var m cluster.Map
	err := s.node.Until(ctx, func(v cluster.View) bool {
		m = v.Map
		return m.Epoch != e
	})
	return m, err
}

// merging runs fn. If a wide directory blocks it, merging merges the directory and runs fn again; it returns ENOTEMPTY
// for a directory that was filled meanwhile.
func (st *store) merging(ctx context.Context, fn func() error) error {
	err := fn()
	var in *pebblestore.ShardedError
	if !errors.As(err, &in) {
		return err
	}
	if err := st.wide.Merge(ctx, in.Dir); err != nil {
		return err
	}
	if err = fn(); errors.As(err, &in) {
		return fmt.Errorf("directory %v: %w", in.Dir, syscall.ENOTEMPTY)
	}
	return err
}

// inherited selects the attributes that the entries of a directory inherit.
const inherited = metadata.SetMode | metadata.SetUID | metadata.SetGID |
	metadata.SetLayout | metadata.SetLayoutField

// Setattr implements metadata.Inodes. When it returns, the shards of a wide directory have the new values of inherited
// attributes.
func (st *store) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	a, err := st.setHere(ctx, ino, c)
	if err == nil && c.Set&inherited != 0 && isDir(a.Mode) {
		st.wide.SetAttr(ctx, ino, a)
	}
	return a, err
}

// ReportShards reports the changes of shards here to the homes of their directories at once instead of a moment later.
func (s *Server) ReportShards(ctx context.Context) error { return s.wide.Report(ctx) }

// shardHandlers returns the handlers of the calls between the nodes of wide directories.
func (s *Server) shardHandlers() node.Handlers {
	return node.Handlers{
		wire.OpShardCreate: ofHome(s.node, func(ctx context.Context, q *wire.ShardCreateReq) (metadata.Ino, func() error) {
			return q.Dir, func() error { return s.CreateShard(ctx, q.NewShard) }
		}),
		wire.OpShardFill: ofHome(s.node, func(ctx context.Context, q *wire.ShardFillReq) (metadata.Ino, func() error) {
			return q.Dir, func() error { return s.FillShard(ctx, q.Shard, q.Entries) }
		}),
		wire.OpShardChange: ofHome(s.node, func(ctx context.Context, q *wire.ShardChangeReq) (metadata.Ino, func() error) {
			return q.Dir, func() error { return s.ChangeShard(ctx, q.ShardChange) }
		}),
		wire.OpShardReport: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.ShardReportReq) (node.Appender, error) {
			inStep := s.cfg.InStep()
			a, err := s.ReportShard(ctx, r.Peer, q.ShardReport)
			if err != nil {
				return nil, err
			}
			if !inStep && (a.State == metadata.ShardUnused || q.Freeze != 0) { // the partner may have a split or merge
				a.State = metadata.ShardWait
			}
			return &wire.ShardReportResp{ShardAnswer: a}, nil
		}),
		wire.OpShardRead: node.Handle(func(ctx context.Context, q *wire.ShardReadReq) (node.Appender, error) {
			if err := tooMany(q.Limit); err != nil {
				return nil, err
			}
			es, err := s.ReadShard(ctx, q.Dir, q.Epoch, q.After, int(q.Limit))
			if err != nil {
				return nil, err
			}
			return &wire.EntriesResp{Entries: es}, nil
		}),
	}
}

// ofHome returns the handler of a request that only the home of a directory may send: from its node, or from the
// stand-in once another node stands in for it. Requests that the node itself still sends then are outdated.
func ofHome[T any, P node.Parser[T]](on node.Node, f func(ctx context.Context, q *T) (metadata.Ino, func() error)) rpc.Handler {
	return node.HandleFrom[T, P](func(ctx context.Context, r *rpc.Request, q *T) (node.Appender, error) {
		dir, do := f(ctx, q)
		if dir.Home() != r.Peer {
			return nil, fmt.Errorf("directory %v: node %d is not its home: %w", dir, r.Peer, syscall.EPERM)
		}
		n, _ := on.View().Map.Node(r.Peer)
		if seat := n.Seat(); seat.Since > 0 && seat.Node != r.Peer && !r.StandIn {
			return nil, fmt.Errorf("directory %v: node %d stands in for its home: %w", dir, seat.Node, syscall.EPERM)
		}
		return nil, do()
	})
}

// redirects makes an error with an entry's new location the body of the reply.
func redirects(h rpc.Handler) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		err := h(ctx, r, resp)
		var e *metadata.Redirect
		if errors.As(err, &e) {
			resp.Body = &wire.RedirectResp{Redirect: *e}
		}
		return err
	}
}
