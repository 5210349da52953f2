package remote

import (
	"context"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

var _ metadata.Leaser = (*Store)(nil)

// LookupLease is metadata.Leaser. The home knows from the connection which node asks.
func (s *Store) LookupLease(ctx context.Context, dir metadata.Ino, name string, _ metadata.NodeID) (metadata.Entry, metadata.Lease, error) {
	var r wire.LeasedEntryResp
	err := do(ctx, s.c, wire.OpLookupLease, &wire.DirName{Dir: dir, Name: name}, &r)
	return r.Entry, r.Lease, err
}

// GetattrLease is metadata.Leaser.
func (s *Store) GetattrLease(ctx context.Context, ino metadata.Ino, _ metadata.NodeID) (metadata.Attr, metadata.Lease, error) {
	var r wire.LeasedAttrResp
	err := do(ctx, s.c, wire.OpGetattrLease, &wire.InoReq{Ino: ino}, &r)
	return r.Attr, r.Lease, err
}

// ReadDirLease is metadata.Leaser.
func (s *Store) ReadDirLease(ctx context.Context, dir metadata.Ino, after string, limit int, _ metadata.NodeID) ([]metadata.LeasedEntry, error) {
	name := func(e *metadata.LeasedEntry) string { return e.Name }
	return pages(after, limit, name, func(after string, limit uint32) ([]metadata.LeasedEntry, error) {
		var r wire.LeasedEntriesResp
		err := do(ctx, s.c, wire.OpReadDirLease, &wire.ReadDirReq{Dir: dir, After: after, Limit: limit}, &r)
		return r.Entries, err
	})
}
