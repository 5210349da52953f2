package pebblestore

import (
	"context"
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
)

// unnamed creates a file without a name.
func unnamed(t *testing.T, s *Store) metadata.Ino {
	t.Helper()
	a, err := s.CreateUnnamed(ctx, metadata.RootIno, metadata.New{Mode: syscall.S_IFREG | 0o600, UID: 7})
	if err != nil || a.Nlink != 0 || a.UID != 7 {
		t.Fatalf("CreateUnnamed: %+v, %v", a, err)
	}
	return a.Ino
}

func wantLinks(t *testing.T, s *Store, ino metadata.Ino, links uint32, orphan bool) {
	t.Helper()
	a, err := s.Getattr(ctx, ino)
	if err != nil || a.Nlink != links {
		t.Errorf("inode %v has %d links, %v, want %d", ino, a.Nlink, err, links)
	}
	all, err := s.orphans(ctx)
	if err != nil || (len(all) > 0) != orphan {
		t.Errorf("orphans: %v, %v", all, err)
	}
}

// TestUnnamed: a file without a name gets one by Link or by a transaction, also after a restart, unless it is doomed.
func TestUnnamed(t *testing.T) {
	fs := vfs.NewCrashableMem()
	var named []metadata.Ino
	cfg := Config{FS: fs, Named: func(ino metadata.Ino) { named = append(named, ino) }}
	first := open(t, cfg)
	ino := unnamed(t, first)
	wantLinks(t, first, ino, 0, true)
	if _, err := first.Lookup(ctx, metadata.RootIno, "f"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Lookup: %v", err)
	}
	cfg.FS = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	s := open(t, cfg)
	if a, err := s.Link(ctx, ino, metadata.RootIno, "f"); err != nil || a.Nlink != 1 || len(named) != 1 {
		t.Errorf("Link: %+v, %v, named %v", a, err, named)
	}
	wantLinks(t, s, ino, 1, false)
	if a, err := s.Doom(ctx, ino); err != nil || a.Nlink != 1 {
		t.Errorf("Doom of a file with a name: %+v, %v", a, err)
	}
	if _, err := s.Unlink(ctx, metadata.RootIno, "f"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Link(ctx, ino, metadata.RootIno, "f"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Link after Unlink: %v, want ENOENT", err)
	}
	if err := s.Reap(ctx, ino); err != nil {
		t.Fatal(err)
	}
	ino = unnamed(t, s)
	if a, err := s.Doom(ctx, ino); err != nil || a.Nlink != 0 {
		t.Errorf("Doom: %+v, %v", a, err)
	}
	if _, err := s.Link(ctx, ino, metadata.RootIno, "f"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Link after Doom: %v, want ENOENT", err)
	}
}

// TestUnnamedPrepared: a file is not doomed while a prepared transaction may name it.
func TestUnnamedPrepared(t *testing.T) {
	var named []metadata.Ino
	s := open(t, Config{Named: func(ino metadata.Ino) { named = append(named, ino) }})
	ino := unnamed(t, s)
	link := []metadata.Edit{{Kind: metadata.EditLink, Ino: ino}}
	soon, cancel := context.WithCancel(ctx)
	cancel()
	for i, end := range []func(context.Context, metadata.TxID) error{s.Abort, s.Commit} {
		tx := metadata.TxID(metadata.LiveIno(3, uint64(2000+i)))
		v, err := s.Prepare(ctx, tx, link)
		if err != nil || v.Attr == nil || v.Attr.Nlink != 1 {
			t.Fatalf("Prepare: %+v, %v", v.Attr, err)
		}
		if _, err := s.Doom(soon, ino); !errors.Is(err, syscall.EINTR) {
			t.Errorf("Doom while a link is prepared: %v, want that it waits", err)
		}
		if err := end(ctx, tx); err != nil || len(named) != i {
			t.Fatalf("end: %v, named %v", err, named)
		}
		wantLinks(t, s, ino, uint32(i), i == 0)
	}
	ino = unnamed(t, s)
	if _, err := s.Doom(ctx, ino); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(ctx, metadata.TxID(metadata.LiveIno(3, 3000)), []metadata.Edit{{Kind: metadata.EditLink, Ino: ino}}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Prepare after Doom: %v, want ENOENT", err)
	}
}

// TestUnnamedGivenUp: a file is kept while a transaction that was given up may have named it, also after a restart.
func TestUnnamedGivenUp(t *testing.T) {
	fs := vfs.NewCrashableMem()
	first := open(t, Config{FS: fs})
	ino, tx := unnamed(t, first), metadata.TxID(metadata.LiveIno(3, 2000))
	if _, err := first.Prepare(ctx, tx, []metadata.Edit{{Kind: metadata.EditLink, Ino: ino}}); err != nil {
		t.Fatal(err)
	}
	if err := first.GiveUp(tx); err != nil {
		t.Fatal(err)
	}
	again := open(t, Config{FS: fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})})
	for _, c := range []struct {
		s     *Store
		end   func(context.Context, metadata.TxID) error
		links uint32
	}{{first, first.Commit, 1}, {again, again.Abort, 0}} {
		if _, err := c.s.Doom(ctx, ino); !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("Doom while a link is in doubt: %v, want EAGAIN", err)
		}
		if err := c.end(ctx, tx); err != nil {
			t.Fatal(err)
		}
		if a, err := c.s.Doom(ctx, ino); err != nil || a.Nlink != c.links {
			t.Errorf("Doom after the end: %+v, %v, want %d links", a, err, c.links)
		}
	}
}
