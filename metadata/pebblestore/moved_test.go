package pebblestore

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestMovedAndGone: a file that is moved by a transaction of other homes can be removed
// by its new name before this one, which has its inode, hears of the end. The rest of
// the transaction is done all the same, also after a start.
func TestMovedAndGone(t *testing.T) {
	for _, starts := range []bool{false, true} {
		fs := vfs.NewMem()
		s := open(t, Config{FS: fs})
		file, err := s.Create(ctx, metadata.RootIno, "file", metadata.New{})
		if err != nil {
			t.Fatal(err)
		}
		tx, other := metadata.TxID(metadata.LiveIno(7, 2000)), metadata.LiveIno(7, 2001)
		edits := []metadata.Edit{
			{Kind: metadata.EditMoved, Ino: file.Ino, ToDir: other, ToName: "new"},
			{Kind: metadata.EditEnter, Dir: metadata.RootIno, Name: "entered", Ino: other, Mode: 0o100644},
		}
		if _, err := s.Prepare(ctx, tx, edits); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Unlink(ctx, metadata.RootIno, "file"); err != nil {
			t.Fatal(err)
		}
		if err := s.Reap(ctx, file.Ino); err != nil {
			t.Fatal(err)
		}
		if starts {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, Config{FS: fs})
		}
		if err := s.Commit(ctx, tx); err != nil {
			t.Fatalf("started again: %v: %v", starts, err) // who looks now waits
		}
		if e, err := s.Lookup(ctx, metadata.RootIno, "entered"); err != nil || e.Ino != other {
			t.Errorf("started again: %v: the other edit has made %+v, %v", starts, e, err)
		}
		if all := s.InDoubt(); len(all) > 0 {
			t.Errorf("started again: %v: in doubt: %v", starts, all)
		}
	}
}
