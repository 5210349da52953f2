package daemon

import (
	"context"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/locks"
	"github.com/bivouacfs/bivouac/metadata/opens"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/shard"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

// home is this node as the home of its inodes: the store of their records, and
// all that only the home of an inode can decide. Both the client of this node,
// by direct calls, and the other nodes, by the handlers, see this one thing.
type home struct {
	*pebblestore.Store
	metadata.Opens // files
	metadata.Locks // locks

	files *opens.Files
	locks *locks.Locks
	wide  *shard.Manager
	tx    *txn.Coordinator
}

var _ metadata.NodeStore = (*home)(nil)

// openHome opens the store and puts upon it what a home does beside. The store
// of files is the home itself.
func (d *Daemon) openHome() (*home, error) {
	h := &home{}
	log := d.log.WithField("part", "metadata")
	var err error
	h.Store, err = pebblestore.Open(pebblestore.Config{
		Dir: d.dir("meta"), Self: d.job.Self, UID: d.job.UID, GID: d.job.GID, RootMode: 0o700,
		Now: time.Now, ShardAt: d.cfg.WideAt, Room: d.room, Log: log,
		Unnamed: func(ino metadata.Ino) { h.files.Unnamed(ino) },
	})
	if err != nil {
		return nil, err
	}
	h.locks = locks.New(locks.Config{
		Wake: d.wake,
		Ready: func(ctx context.Context, by metadata.Holder, ino metadata.Ino) error {
			return h.files.Holds(ctx, by, ino)
		},
	})
	h.Locks = h.locks
	h.files = opens.New(opens.Config{
		Store: h, Places: d.places, Remove: d.removeObjects, Run: d.run, Locks: h.locks, Log: d.log.WithField("part", "open files"),
	})
	h.Opens = h.files
	h.wide = d.newWide(h.Store)
	h.tx, err = txn.New(txn.Config{
		Self: d.job.Self, Store: txStore{h.Store, h, d}, Peer: d.txPeer, Down: d.down,
		EntryHome: d.entryHome, DirHome: d.dirHome, Log: log,
	})
	if err != nil {
		_ = h.Close() // what failed comes first
		return nil, err
	}
	return h, nil
}

// set is Setattr of this node alone.
func (h *home) set(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	return h.files.Set(ctx, ino, c, func() (metadata.Attr, error) { return h.Store.Setattr(ctx, ino, c) })
}

// Unlink is metadata.Namespace.
func (h *home) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	return h.tx.Unlink(ctx, dir, name)
}

// Rename is metadata.Namespace.
func (h *home) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	return h.tx.Rename(ctx, r)
}

// Mkdir is metadata.Directories.
func (h *home) Mkdir(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	return h.tx.Mkdir(ctx, dir, name, n)
}

// Rmdir is metadata.Directories.
func (h *home) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	return h.tx.Rmdir(ctx, dir, name)
}

// Link is metadata.Directories.
func (h *home) Link(ctx context.Context, ino, dir metadata.Ino, name string) (metadata.Attr, error) {
	return h.tx.Link(ctx, ino, dir, name)
}
