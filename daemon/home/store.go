package home

import (
	"context"
	"time"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/locks"
	"github.com/bivouacfs/bivouac/metadata/opens"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/shard"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

// store combines the home's records with the state that only the home of an inode can decide: open files, locks,
// transactions, wide directories.
type store struct {
	*pebblestore.Store
	metadata.Opens // files
	metadata.Locks // locks

	files *opens.Files
	locks *locks.Locks
	wide  *shard.Manager
	tx    *txn.Coordinator
}

var _ metadata.NodeStore = (*store)(nil)

// openStore opens the records and builds the other parts of the home on them. The home itself is the store of open
// files.
func (s *Server) openStore() (*store, error) {
	st := &store{}
	log := s.log.WithField("part", "metadata")
	var err error
	st.Store, err = pebblestore.Open(pebblestore.Config{
		Dir: s.cfg.Dir, Self: s.node.Self(), UID: s.cfg.UID, GID: s.cfg.GID, RootMode: 0o700,
		Now: s.cfg.Now, ShardAt: s.cfg.SplitAt, Room: s.hasSpace, Log: log,
		Orphaned: func(ino metadata.Ino, size int64) { st.files.Unnamed(ino, size) },
		Named:    func(ino metadata.Ino) { st.files.Named(ino) },
	})
	if err != nil {
		return nil, err
	}
	st.locks = locks.New(locks.Config{
		Run:  s.cfg.Run,
		Wake: s.wake,
		Ready: func(ctx context.Context, by metadata.Holder, ino metadata.Ino, do func()) error {
			return st.files.Holds(ctx, by, ino, do)
		},
	})
	st.Locks = st.locks
	st.files = opens.New(opens.Config{
		Store: unguarded{st}, Places: s.places, Remove: s.removeObjects, Recall: s.recall, Run: s.cfg.Run, Locks: st.locks, Rest: time.Second,
		Changed: func(ctx context.Context, ino metadata.Ino) { s.revokeFor(ctx, rpc.NoNode, time.Time{}, attrKey(ino)) },
		Log:     s.log.WithField("part", "open files"),
	})
	st.Opens = st.files
	st.wide = s.newWide(st.Store)
	st.tx, err = txn.New(txn.Config{
		Self: s.node.Self(), Store: txStore{st.Store, st, s}, Peer: s.cfg.Home, Down: s.down,
		EntryHome: s.entryHome, DirHome: s.dirHome, Log: log,
	})
	if err != nil {
		_ = st.Close() // report the error that came first
		return nil, err
	}
	return st, nil
}

// unguarded is a store whose changes are not serialized by opens.Files.Set.
type unguarded struct{ *store }

// Setattr implements metadata.Inodes.
func (u unguarded) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	return u.Store.Setattr(ctx, ino, c)
}

// setHere is Setattr without updating the shards of a wide directory.
func (st *store) setHere(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	return st.files.Set(ctx, ino, c, func() (metadata.Attr, error) { return st.Store.Setattr(ctx, ino, c) })
}

// Unlink implements metadata.Namespace.
func (st *store) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	return st.tx.Unlink(ctx, dir, name)
}

// Rename implements metadata.Namespace.
func (st *store) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	return st.tx.Rename(ctx, r)
}

// Mkdir implements metadata.Directories.
func (st *store) Mkdir(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	return st.tx.Mkdir(ctx, dir, name, n)
}

// Rmdir implements metadata.Directories.
func (st *store) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	return st.tx.Rmdir(ctx, dir, name)
}

// Link implements metadata.Directories.
func (st *store) Link(ctx context.Context, ino, dir metadata.Ino, name string) (metadata.Attr, error) {
	return st.tx.Link(ctx, ino, dir, name)
}
