package daemon

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

// Census is all that this node's part of the live realm has, for a check of
// the whole (txn.Check).
func (d *Daemon) Census(ctx context.Context) (metadata.Inventory, error) {
	return d.meta.Inventory(ctx)
}

// Transactions is what this home has done together with others.
func (d *Daemon) Transactions() txn.Stats { return d.meta.tx.Stats() }

// txPeer is another home.
func (d *Daemon) txPeer(id metadata.NodeID) metadata.TxPeer { return d.cfg.Meta(d.peers.To(id)) }

// down reports whether the map has given a node up.
func (d *Daemon) down(id metadata.NodeID) bool {
	n, ok := d.View().Map.Node(id)
	return !ok || n.State == cluster.Down
}

// entryHome is the home of an entry, as far as this node knows how its
// directory is spread, and else after what another has said of that.
func (d *Daemon) entryHome(dir metadata.Ino, name string, said metadata.Epoch) (metadata.NodeID, error) {
	if e := d.meta.Epoch(dir); e != 0 {
		said = e
	}
	m := d.View().Map
	if said > m.Epoch {
		d.Nudge()
		return 0, fmt.Errorf("map of epoch %d: %w", said, syscall.EAGAIN)
	}
	return m.EntryHome(dir, name, said), nil
}

// dirHome is where the new directory name of parent shall be homed.
func (d *Daemon) dirHome(ctx context.Context, parent metadata.Attr, name string) metadata.NodeID {
	return d.View().Map.NewDirHome(parent.Ino, parent.Nlink, name, d.leased.asker(ctx))
}

// txStore is the store of the home's transactions. Wide directories that are in
// their way are folded, and who holds a promise about what they change here is
// told before the coordinator hears that it is done.
type txStore struct {
	*pebblestore.Store
	h *home
	d *Daemon
}

// Prepare is metadata.Participant.
func (s txStore) Prepare(ctx context.Context, tx metadata.TxID, edits []metadata.Edit) (v metadata.Vote, err error) {
	err = s.h.unfolded(ctx, func() (err error) {
		v, err = s.Store.Prepare(ctx, tx, edits)
		return err
	})
	return v, err
}

// Hold is txn.Store.
func (s txStore) Hold(ctx context.Context, tx metadata.TxID, edits []metadata.Edit) (v metadata.Vote, err error) {
	err = s.h.unfolded(ctx, func() (err error) {
		v, err = s.Store.Hold(ctx, tx, edits)
		return err
	})
	return v, err
}

// Commit is metadata.Participant.
func (s txStore) Commit(ctx context.Context, tx metadata.TxID) error {
	keys := s.Touched(tx)
	err := s.Store.Commit(ctx, tx)
	if err == nil && len(keys) > 0 {
		s.d.leased.changedBy(ctx, rpc.NoNode, keys...)
	}
	return err
}

// Rmdir is metadata.Directories.
func (s txStore) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	return s.h.unfolded(ctx, func() error { return s.Store.Rmdir(ctx, dir, name) })
}

// Rename is metadata.Namespace.
func (s txStore) Rename(ctx context.Context, r metadata.Rename) (replaced *metadata.Entry, err error) {
	err = s.h.unfolded(ctx, func() (err error) {
		replaced, err = s.Store.Rename(ctx, r)
		return err
	})
	return replaced, err
}

// coordinated makes a handler of a function on a transaction that only its
// coordinator may ask for.
func coordinated[T any, P node.Parser[T]](tx func(*T) metadata.TxID, f func(ctx context.Context, q *T) (node.Appender, error)) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		return node.Handle[T, P](func(ctx context.Context, q *T) (node.Appender, error) {
			if id := tx(q); id.Home() != r.Peer {
				return nil, fmt.Errorf("transaction %v: asked for by node %d: %w", id, r.Peer, syscall.EPERM)
			}
			return f(ctx, q)
		})(ctx, r, resp)
	}
}

func (d *Daemon) txHandlers() map[wire.Op]rpc.Handler {
	t := d.meta.tx
	ofReq := func(q *wire.TxReq) metadata.TxID { return q.Tx }
	return map[wire.Op]rpc.Handler{
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
			o, err := t.Outcome(ctx, q.Tx)
			if err != nil {
				return nil, err
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
