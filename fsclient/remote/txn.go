package remote

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

var _ metadata.TxPeer = (*Store)(nil)

// Prepare implements metadata.Participant.
func (s *Store) Prepare(ctx context.Context, tx metadata.TxID, edits []metadata.Edit) (metadata.Vote, error) {
	if len(edits) > metadata.MaxEdits {
		return metadata.Vote{}, fmt.Errorf("%d edits: %w", len(edits), syscall.EINVAL)
	}
	var r wire.VoteResp
	err := do(ctx, s.c, wire.OpPrepare, &wire.PrepareReq{Tx: tx, Edits: edits}, &r)
	return r.Vote, err
}

// Commit implements metadata.Participant.
func (s *Store) Commit(ctx context.Context, tx metadata.TxID) error {
	return do(ctx, s.c, wire.OpCommit, &wire.TxReq{Tx: tx}, nil)
}

// Abort implements metadata.Participant.
func (s *Store) Abort(ctx context.Context, tx metadata.TxID) error {
	return do(ctx, s.c, wire.OpAbort, &wire.TxReq{Tx: tx}, nil)
}

// Outcome implements metadata.TxPeer.
func (s *Store) Outcome(ctx context.Context, tx metadata.TxID) (metadata.Outcome, error) {
	var r wire.OutcomeResp
	err := do(ctx, s.c, wire.OpOutcome, &wire.TxReq{Tx: tx}, &r)
	return r.Outcome, err
}

// LockRename implements metadata.TxPeer.
func (s *Store) LockRename(ctx context.Context, tx metadata.TxID) error {
	return do(ctx, s.c, wire.OpRenameLock, &wire.RenameLockReq{Tx: tx}, nil)
}

// UnlockRename implements metadata.TxPeer.
func (s *Store) UnlockRename(ctx context.Context, tx metadata.TxID) error {
	return do(ctx, s.c, wire.OpRenameLock, &wire.RenameLockReq{Tx: tx, Unlock: true}, nil)
}

// Ancestor implements metadata.TxPeer.
func (s *Store) Ancestor(ctx context.Context, from, stop metadata.Ino) (metadata.Ino, error) {
	var r wire.InoReq
	err := do(ctx, s.c, wire.OpAncestor, &wire.AncestorReq{From: from, Stop: stop}, &r)
	return r.Ino, err
}
