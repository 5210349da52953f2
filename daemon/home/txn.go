package home

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
)

// down reports whether the map has given up the node that serves a home.
func (s *Server) down(id metadata.NodeID) bool {
	_, serves := s.node.View().Map.HomeAt(id)
	return !serves
}

// entryHome returns the home of an entry. If this node does not know how its directory is split, it uses the epoch
// named by the other node.
func (s *Server) entryHome(dir metadata.Ino, name string, named metadata.Epoch) (metadata.NodeID, error) {
	if e := s.Epoch(dir); e != 0 {
		named = e
	}
	m := s.node.View().Map
	if named > m.Epoch {
		s.node.Nudge()
		return 0, fmt.Errorf("map of epoch %d: %w", named, syscall.EAGAIN)
	}
	return m.EntryHome(dir, name, named), nil
}

// dirHome returns the home for the new directory name of parent.
func (s *Server) dirHome(ctx context.Context, parent metadata.Attr, name string) metadata.NodeID {
	return s.node.View().Map.NewDirHome(parent.Ino, parent.Nlink, name, s.asker(ctx))
}

// txStore is the store of the home's transactions. It merges wide directories that block them, and recalls the leases
// on the changed names and inodes before the coordinator gets the acknowledgement.
type txStore struct {
	*pebblestore.Store
	st *store
	s  *Server
}

// Prepare implements metadata.Participant. It recalls the leases on everything that the transaction changes before the
// decision, too, so that no node sees one home changed and another one not.
func (t txStore) Prepare(ctx context.Context, tx metadata.TxID, edits []metadata.Edit) (v metadata.Vote, err error) {
	err = t.st.merging(ctx, func() (err error) {
		v, err = t.Store.Prepare(ctx, tx, edits)
		return err
	})
	if keys := t.Touched(tx); err == nil && len(keys) > 0 {
		t.s.revokeFor(ctx, rpc.NoNode, time.Time{}, keys...)
	}
	return v, err
}

// Hold implements txn.Store.
func (t txStore) Hold(ctx context.Context, tx metadata.TxID, edits []metadata.Edit) (v metadata.Vote, err error) {
	err = t.st.merging(ctx, func() (err error) {
		v, err = t.Store.Hold(ctx, tx, edits)
		return err
	})
	return v, err
}

// Commit implements metadata.Participant.
func (t txStore) Commit(ctx context.Context, tx metadata.TxID) error {
	keys := t.Touched(tx)
	err := t.Store.Commit(ctx, tx)
	if err == nil && len(keys) > 0 {
		t.s.revokeFor(ctx, rpc.NoNode, time.Time{}, keys...)
	}
	return err
}

// Rmdir implements metadata.Directories.
func (t txStore) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	return t.st.merging(ctx, func() error { return t.Store.Rmdir(ctx, dir, name) })
}

// Rename implements metadata.Namespace.
func (t txStore) Rename(ctx context.Context, r metadata.Rename) (replaced *metadata.Entry, err error) {
	err = t.st.merging(ctx, func() (err error) {
		replaced, err = t.Store.Rename(ctx, r)
		return err
	})
	return replaced, err
}

// coordinated returns the handler of a request that only the coordinator of its transaction may send.
func coordinated[T any, P node.Parser[T]](tx func(*T) metadata.TxID, f func(ctx context.Context, q *T) (node.Appender, error)) rpc.Handler {
	return node.HandleFrom[T, P](func(ctx context.Context, r *rpc.Request, q *T) (node.Appender, error) {
		if id := tx(q); id.Home() != r.Peer {
			return nil, fmt.Errorf("transaction %v: node %d is not its coordinator: %w", id, r.Peer, syscall.EPERM)
		}
		return f(ctx, q)
	})
}

func (s *Server) txHandlers() node.Handlers {
	t := s.tx
	ofReq := func(q *wire.TxReq) metadata.TxID { return q.Tx }
	return node.Handlers{
		wire.OpPrepare: coordinated(func(q *wire.PrepareReq) metadata.TxID { return q.Tx }, func(ctx context.Context, q *wire.PrepareReq) (node.Appender, error) {
			v, err := t.Prepare(ctx, q.Tx, q.Edits)
			if err != nil {
				return nil, err
			}
			return &wire.VoteResp{Vote: v}, nil
		}),
		wire.OpCommit: coordinated(ofReq, func(ctx context.Context, q *wire.TxReq) (node.Appender, error) {
			return nil, t.Commit(ctx, q.Tx)
		}),
		wire.OpAbort: coordinated(ofReq, func(ctx context.Context, q *wire.TxReq) (node.Appender, error) {
			return nil, t.Abort(ctx, q.Tx)
		}),
		wire.OpRenameLock: coordinated(func(q *wire.RenameLockReq) metadata.TxID { return q.Tx }, func(ctx context.Context, q *wire.RenameLockReq) (node.Appender, error) {
			if q.Unlock {
				return nil, t.UnlockRename(ctx, q.Tx)
			}
			return nil, t.LockRename(ctx, q.Tx)
		}),
		wire.OpOutcome: node.Handle(func(ctx context.Context, q *wire.TxReq) (node.Appender, error) {
			inStep := s.cfg.InStep()
			o, err := t.Outcome(ctx, q.Tx)
			if err != nil {
				return nil, err
			}
			if !inStep && o == metadata.Aborted && s.Earlier(metadata.Ino(q.Tx)) { // the partner may have the decision
				o = metadata.Undecided
			}
			return &wire.OutcomeResp{Outcome: o}, nil
		}),
		wire.OpAncestor: node.Handle(func(ctx context.Context, q *wire.AncestorReq) (node.Appender, error) {
			ino, err := t.Ancestor(ctx, q.From, q.Stop)
			if err != nil {
				return nil, err
			}
			return &wire.InoReq{Ino: ino}, nil
		}),
	}
}
