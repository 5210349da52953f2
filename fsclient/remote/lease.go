package remote

import (
	"context"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

var _ metadata.Leaser = (*Store)(nil)

// LookupLease implements metadata.Leaser. The home knows the calling node from the connection.
func (s *Store) LookupLease(ctx context.Context, dir metadata.Ino, name string, _ metadata.NodeID) (metadata.Entry, metadata.Lease, error) {
	var r wire.LeasedEntryResp
	err := do(ctx, s.c, wire.OpLookupLease, &wire.DirName{Dir: dir, Name: name}, &r)
	return r.Entry, r.Lease, err
}

// GetattrLease implements metadata.Leaser.
func (s *Store) GetattrLease(ctx context.Context, ino metadata.Ino, _ metadata.NodeID) (metadata.Attr, metadata.Lease, error) {
	var r wire.LeasedAttrResp
	err := do(ctx, s.c, wire.OpGetattrLease, &wire.InoReq{Ino: ino}, &r)
	return r.Attr, r.Lease, err
}

// RenewLease implements metadata.Leaser.
func (s *Store) RenewLease(ctx context.Context, session uint64, _ metadata.NodeID) (time.Duration, error) {
	var r wire.RenewLeaseResp
	err := do(ctx, s.c, wire.OpRenewLease, &wire.RenewLeaseReq{Session: session}, &r)
	return r.Term, err
}

// ReadDirLease implements metadata.Leaser.
func (s *Store) ReadDirLease(ctx context.Context, dir metadata.Ino, after string, limit int, _ metadata.NodeID) (metadata.LeasedListing, error) {
	var r wire.LeasedListingResp
	err := do(ctx, s.c, wire.OpReadDirLease, &wire.ReadDirReq{Dir: dir, After: after, Limit: uint32(limit)}, &r)
	return r.LeasedListing, err
}
