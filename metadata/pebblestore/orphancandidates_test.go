package pebblestore

import (
	"context"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestOrphaned: Config.Orphaned is called once for each file that loses its last link, however that is removed, and for
// no other file.
func TestOrphaned(t *testing.T) {
	ctx := context.Background()
	fs := vfs.NewMem()
	var told []metadata.Ino
	s := open(t, Config{FS: fs, Orphaned: func(ino metadata.Ino, _ int64) { told = append(told, ino) }})
	if !s.Fresh() {
		t.Error("a store that was just made is not fresh")
	}
	want := func(what string, inos ...metadata.Ino) {
		t.Helper()
		if !slices.Equal(told, inos) {
			t.Errorf("%s: told %v, want %v", what, told, inos)
		}
		told = nil
	}
	make := func(name string) metadata.Ino {
		t.Helper()
		a, err := s.Create(ctx, metadata.RootIno, name, metadata.New{Mode: 0o644})
		if err != nil {
			t.Fatal(err)
		}
		return a.Ino
	}
	a, b := make("a"), make("b")
	if _, err := s.Link(ctx, a, metadata.RootIno, "a2"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Unlink(ctx, metadata.RootIno, "a"); err != nil {
		t.Fatal(err)
	}
	want("one of two names")
	if _, err := s.Unlink(ctx, metadata.RootIno, "a"); err == nil {
		t.Error("unlink of no name succeeds")
	}
	want("a name that is not there")
	if _, err := s.Unlink(ctx, metadata.RootIno, "a2"); err != nil {
		t.Fatal(err)
	}
	want("the last name", a)
	make("c")
	if _, err := s.Rename(ctx, metadata.Rename{Dir: metadata.RootIno, Name: "c", NewDir: metadata.RootIno, NewName: "b"}); err != nil {
		t.Fatal(err)
	}
	want("a name that is replaced", b)
	if _, err := s.Mkdir(ctx, metadata.RootIno, "d", metadata.New{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := s.Rmdir(ctx, metadata.RootIno, "d"); err != nil {
		t.Fatal(err)
	}
	want("a directory")
}
