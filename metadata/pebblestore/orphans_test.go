package pebblestore

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// allReferenced returns all references of s to a home, in pages of limit records.
func allReferenced(t *testing.T, s *Store, home metadata.NodeID, limit int) []metadata.Ino {
	t.Helper()
	var all []metadata.Ino
	var after []byte
	for pages := 0; ; pages++ {
		inos, next, err := s.Referenced(ctx, home, after, limit)
		if err != nil || pages > 1000 {
			t.Fatalf("page %d: %v", pages, err)
		}
		all = append(all, inos...)
		if after = next; next == nil {
			slices.Sort(all)
			return all
		}
	}
}

// TestReferenced: references of entries and of prepared edits, to inodes of this home or another.
func TestReferenced(t *testing.T) {
	s := open(t, Config{})
	var own []metadata.Ino
	for i := range 20 {
		a, err := s.Create(ctx, metadata.RootIno, fmt.Sprint("f", i), metadata.New{Mode: syscall.S_IFREG | 0o600})
		if err != nil {
			t.Fatal(err)
		}
		own = append(own, a.Ino)
	}
	far, old := metadata.LiveIno(3, 2001), own[7]
	tx := metadata.TxID(metadata.LiveIno(3, 2000))
	edit := metadata.Edit{Kind: metadata.EditReplace, Dir: metadata.RootIno, Name: "f7", Ino: far, Mode: syscall.S_IFREG}
	if _, err := s.Prepare(ctx, tx, []metadata.Edit{edit}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(own)
	for _, limit := range []int{1, 7, 1 << 20} {
		if got := allReferenced(t, s, 3, limit); !slices.Equal(got, []metadata.Ino{far}) {
			t.Errorf("named of home 3, by %d: %v, want %v", limit, got, far)
		}
		if got := slices.Compact(allReferenced(t, s, 0, limit)); !slices.Equal(got, own) {
			t.Errorf("named of home 0, by %d: %v, want %v", limit, got, own)
		}
	}
	if err := s.Commit(ctx, tx); err != nil {
		t.Fatal(err)
	}
	if got := allReferenced(t, s, 3, 4); !slices.Equal(got, []metadata.Ino{far}) {
		t.Errorf("named of home 3 after the commit: %v, want %v", got, far)
	}
	if slices.Contains(allReferenced(t, s, 0, 4), old) {
		t.Error("what was replaced is named")
	}
}

// TestLowerLinks: the link count of a file can be corrected downwards, unless the file has changed.
func TestLowerLinks(t *testing.T) {
	s := open(t, Config{})
	a, err := s.Create(ctx, metadata.RootIno, "a", metadata.New{Mode: syscall.S_IFREG | 0o600})
	for i := 0; err == nil && i < 3; i++ {
		a, err = s.Link(ctx, a.Ino, metadata.RootIno, fmt.Sprint("link", i))
	}
	if err != nil {
		t.Fatal(err)
	}
	at := Links{Count: 2, Ctime: a.Ctime}
	if m, err := s.HardLinked(ctx, 10); err != nil || len(m) != 1 || m[a.Ino] != (Links{4, a.Ctime}) {
		t.Errorf("HardLinked = %v, %v, want %v with 4 links", m, err, a.Ino)
	}
	for _, bad := range []Links{{2, a.Ctime - 1}, {4, a.Ctime}, {5, a.Ctime}} {
		if err := s.LowerLinks(a.Ino, bad); !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("LowerLinks to %+v = %v, want EAGAIN", bad, err)
		}
	}
	if err := s.LowerLinks(a.Ino, at); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Getattr(ctx, a.Ino); err != nil || b.Nlink != 2 || b.Ctime <= a.Ctime {
		t.Errorf("the file: %+v, %v, want 2 links and a newer ctime", b, err)
	}
	if err := s.LowerLinks(a.Ino, Links{1, a.Ctime}); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("LowerLinks again = %v, want EAGAIN", err)
	}
}

// TestLowerLinksToNone: an unreferenced inode is removed, unless it changed, is locked or has entries.
func TestLowerLinksToNone(t *testing.T) {
	var unnamed []metadata.Ino
	s := open(t, Config{Orphaned: func(ino metadata.Ino, _ int64) { unnamed = append(unnamed, ino) }})
	tx := func(n uint64) metadata.TxID { return metadata.TxID(metadata.LiveIno(3, n)) }
	made := &metadata.New{Mode: syscall.S_IFDIR | 0o755}
	v, err := s.Prepare(ctx, tx(1), []metadata.Edit{{Kind: metadata.EditMake, ToDir: metadata.LiveIno(3, 9), ToName: "d", New: made}})
	if err == nil {
		err = s.Commit(ctx, tx(1))
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := v.Attr.Ino
	a, err := s.Create(ctx, dir, "f", metadata.New{Mode: syscall.S_IFREG | 0o600})
	if err != nil {
		t.Fatal(err)
	}
	suspects := func(named ...metadata.Ino) map[metadata.Ino]metadata.Time {
		t.Helper()
		found, err := s.OrphanCandidates(ctx, func(i metadata.Ino) bool { return slices.Contains(named, i) }, 10)
		if err != nil {
			t.Fatal(err)
		}
		m := make(map[metadata.Ino]metadata.Time)
		for ino, l := range found {
			m[ino] = l.Ctime
		}
		return m
	}
	if m := suspects(a.Ino); len(m) != 1 || m[dir] == 0 {
		t.Errorf("suspects: %v, want %v alone", m, dir)
	}
	at := suspects()
	if len(at) != 2 {
		t.Fatalf("suspects: %v, want %v and %v", at, dir, a.Ino)
	}
	want := func(ino metadata.Ino, ctime metadata.Time, errno error) {
		t.Helper()
		if err := s.LowerLinks(ino, Links{Ctime: ctime}); !errors.Is(err, errno) {
			t.Errorf("LowerLinks(%v) = %v, want %v", ino, err, errno)
		}
	}
	want(dir, at[dir], syscall.ENOTEMPTY)
	want(a.Ino, at[a.Ino]-1, syscall.EAGAIN)
	want(metadata.RootIno, 0, syscall.EAGAIN)
	if _, err := s.Prepare(ctx, tx(2), []metadata.Edit{{Kind: metadata.EditLink, Ino: a.Ino}}); err != nil {
		t.Fatal(err)
	}
	want(a.Ino, at[a.Ino], syscall.EAGAIN)
	if m := suspects(); m[a.Ino] != 0 {
		t.Error("an inode that a transaction holds is suspected")
	}
	if err := s.Abort(ctx, tx(2)); err != nil {
		t.Fatal(err)
	}
	want(a.Ino, at[a.Ino], nil)
	if b, err := s.Getattr(ctx, a.Ino); err != nil || b.Nlink != 0 || !slices.Equal(unnamed, []metadata.Ino{a.Ino}) {
		t.Errorf("the file: %+v, %v, unnamed %v; want an orphan", b, err, unnamed)
	}
	want(a.Ino, at[a.Ino], syscall.EAGAIN)
	if err := s.Reap(ctx, a.Ino); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Delete(entryKey(dir, "f"), nil); err != nil {
		t.Fatal(err)
	}
	want(dir, suspects()[dir], nil)
	want(dir, 0, syscall.ENOENT)
}
