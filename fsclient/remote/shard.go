package remote

import (
	"context"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

var _ metadata.Shards = (*Store)(nil)

// CreateShard implements metadata.Sections.
func (s *Store) CreateShard(ctx context.Context, n metadata.NewShard) error {
	return do(ctx, s.c, wire.OpShardCreate, &wire.ShardCreateReq{NewShard: n}, nil)
}

// FillShard implements metadata.Sections. One call takes at most wire.MaxEntries.
func (s *Store) FillShard(ctx context.Context, sec metadata.Shard, es []metadata.Entry) error {
	for len(es) > 0 {
		n := min(len(es), wire.MaxEntries)
		if err := do(ctx, s.c, wire.OpShardFill, &wire.ShardFillReq{Shard: sec, Entries: es[:n]}, nil); err != nil {
			return err
		}
		es = es[n:]
	}
	return nil
}

// ChangeShard implements metadata.Sections.
func (s *Store) ChangeShard(ctx context.Context, c metadata.ShardChange) error {
	return do(ctx, s.c, wire.OpShardChange, &wire.ShardChangeReq{ShardChange: c}, nil)
}

// ReportShard implements metadata.Sections. The peer knows the caller: by is not sent.
func (s *Store) ReportShard(ctx context.Context, _ metadata.NodeID, r metadata.ShardReport) (metadata.ShardAnswer, error) {
	var a wire.ShardReportResp
	err := do(ctx, s.c, wire.OpShardReport, &wire.ShardReportReq{ShardReport: r}, &a)
	return a.ShardAnswer, err
}

// ReadShard implements metadata.Sections. One call returns at most wire.MaxEntries.
func (s *Store) ReadShard(ctx context.Context, dir metadata.Ino, epoch metadata.Epoch, after string, limit int) ([]metadata.Entry, error) {
	return pages(after, limit, entryName, func(after string, limit uint32) ([]metadata.Entry, error) {
		var r wire.EntriesResp
		q := wire.ShardReadReq{Epoch: epoch, ReadDirReq: wire.ReadDirReq{Dir: dir, After: after, Limit: limit}}
		err := do(ctx, s.c, wire.OpShardRead, &q, &r)
		return r.Entries, err
	})
}

// pages combines several calls into one listing, if limit exceeds the entries that one call returns.
func pages[E any](after string, limit int, name func(*E) string, read func(after string, limit uint32) ([]E, error)) ([]E, error) {
	var all []E
	for len(all) < limit || limit <= 0 {
		ask := min(limit-len(all), wire.MaxEntries)
		es, err := read(after, uint32(max(ask, 0)))
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = es
		} else {
			all = append(all, es...)
		}
		if len(es) < ask || len(es) == 0 {
			break
		}
		after = name(&all[len(all)-1])
	}
	return all, nil
}

func entryName(e *metadata.Entry) string { return e.Name }
