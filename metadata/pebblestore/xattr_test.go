package pebblestore

import (
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestXattrsLeaveNothing: the xattr keys of a removed inode are removed, and no others.
func TestXattrsLeaveNothing(t *testing.T) {
	s := open(t, Config{})
	kept := mustCreate(t, s, "kept")
	set := func(ino metadata.Ino) {
		t.Helper()
		for _, name := range []string{"user.a", "user.b"} {
			if err := s.Setxattr(ctx, ino, metadata.Xattr{Name: name, Value: make([]byte, 100)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	gone := mustCreate(t, s, "gone")
	after := mustCreate(t, s, "after")
	d, err := s.Mkdir(ctx, metadata.RootIno, "d", metadata.New{Mode: 0o755})
	if err != nil {
		t.Fatal(err)
	}
	for _, ino := range []metadata.Ino{kept, gone, after, d.Ino} {
		set(ino)
	}
	if _, err := s.Unlink(ctx, metadata.RootIno, "gone"); err != nil {
		t.Fatal(err)
	}
	if n := countXattrs(t, s); n != 8 {
		t.Errorf("%d attributes while the orphan is there, want 8", n)
	}
	if err := s.Reap(ctx, gone); err != nil {
		t.Fatal(err)
	}
	if err := s.Rmdir(ctx, metadata.RootIno, "d"); err != nil {
		t.Fatal(err)
	}
	if n := countXattrs(t, s); n != 4 {
		t.Errorf("%d attributes left, want the 4 of the other two", n)
	}
}

func mustCreate(t *testing.T, s *Store, name string) metadata.Ino {
	t.Helper()
	a, err := s.Create(ctx, metadata.RootIno, name, metadata.New{Mode: reg | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	return a.Ino
}

func countXattrs(t *testing.T, s *Store) (n int) {
	t.Helper()
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixXattr}, UpperBound: []byte{prefixXattr + 1}})
	if err != nil {
		t.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	return n
}
