// Package clienttest provides the home of a node for tests of clients, without its daemon, network and control plane.
// Its one idea is that this home consists of the same parts as the home of a daemon.
package clienttest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/locks"
	"github.com/bivouacfs/bivouac/metadata/opens"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

// Home is a node as the home of its inodes, in memory.
type Home struct {
	*txn.Coordinator // overrides operations of the store that involve other homes
	metadata.Opens
	stored
	metadata.Locks

	Files *opens.Files
}

// unguarded is a Home whose changes do not wait for each other in opens.Files.Set.
type unguarded struct{ *Home }

// Setattr implements metadata.Inodes.
func (u unguarded) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	return u.Store.Setattr(ctx, ino, c)
}

// stored embeds the store one level deeper, so that the other methods of Home win.
type stored struct{ *pebblestore.Store }

// Config describes a home.
type Config struct {
	Self     metadata.NodeID
	UID, GID uint32
	View     func() cluster.View
	Data     func(metadata.NodeID) datapath.Store
	Peer     func(metadata.NodeID) metadata.TxPeer // the other homes
	// Wake wakes waiters for locks on a node; may be nil.
	Wake func(node metadata.NodeID, waiters []uint64)
	Keep bool // orphans stay until they are reaped
}

// New makes a home that ends with the test.
func New(t testing.TB, cfg Config) *Home {
	t.Helper()
	h := &Home{}
	s, err := pebblestore.Open(pebblestore.Config{
		Dir: "meta", FS: vfs.NewMem(), Self: cfg.Self, UID: cfg.UID, GID: cfg.GID, CacheSize: 1 << 20,
		Orphaned: func(ino metadata.Ino, size int64) { h.Files.Unnamed(ino, size) },
		Named:    func(ino metadata.Ino) { h.Files.Named(ino) },
	})
	if err != nil {
		t.Fatal(err)
	}
	h.Store = s
	l := locks.New(locks.Config{
		Ready: func(ctx context.Context, by metadata.Holder, ino metadata.Ino, do func()) error {
			return h.Files.Holds(ctx, by, ino, do)
		},
		Wake: func(_ context.Context, node metadata.NodeID, waiters []uint64) error {
			if cfg.Wake != nil {
				cfg.Wake(node, waiters)
			}
			return nil
		},
	})
	h.Locks = l
	h.Files = opens.New(opens.Config{
		Store: unguarded{h}, Locks: l, Run: 1,
		Places: func(_ context.Context, a metadata.Attr, _ bool) (all []opens.Place, err error) {
			for _, id := range cfg.View().Map.Order(a.Ino, a.Layout) {
				all = append(all, opens.Place{Node: id, Object: a.Object()})
			}
			return all, nil
		},
		Remove: func(ctx context.Context, id metadata.NodeID, inos []metadata.Ino) error {
			var errs []error
			for _, ino := range inos {
				errs = append(errs, cfg.Data(id).Remove(ctx, ino))
			}
			return errors.Join(errs...)
		},
	})
	h.Opens = h.Files
	h.Coordinator, err = txn.New(txn.Config{
		Self: cfg.Self, Store: s, Peer: cfg.Peer,
		DirHome: func(_ context.Context, dir metadata.Attr, name string) metadata.NodeID {
			return cfg.View().Map.DirHome(dir.Ino, name)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { h.Run(ctx) })
	wg.Go(func() { l.Serve(ctx) })
	if !cfg.Keep {
		wg.Go(func() { h.Files.Serve(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// OpenAhead implements metadata.AheadOpener.
func (h *Home) OpenAhead(ctx context.Context, by metadata.Holder, files []metadata.OpenAhead) ([]metadata.Attr, metadata.Run, error) {
	return h.Files.OpenAhead(ctx, by, files)
}

// Data returns the data store of a node, on disk, which exists until the test ends.
func Data(t testing.TB) *chunkstore.Store {
	t.Helper()
	d, err := chunkstore.Open(chunkstore.Config{Dirs: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// Setattr implements metadata.Inodes in the same way as a daemon's home.
func (h *Home) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	return h.Files.Set(ctx, ino, c, func() (metadata.Attr, error) { return h.Store.Setattr(ctx, ino, c) })
}
