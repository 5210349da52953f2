package pebblestore

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestMovedAndGone: a file moved by a transaction can be removed under its new name before the home of its inode learns
// of the commit. The rest of the transaction is applied, also after a restart.
func TestMovedAndGone(t *testing.T) {
	tx, other := metadata.TxID(metadata.LiveIno(7, 2000)), metadata.LiveIno(7, 2001)
	for name, of := range map[string]func(file metadata.Ino) metadata.Edit{
		"moved": func(file metadata.Ino) metadata.Edit {
			return metadata.Edit{Kind: metadata.EditMoved, Ino: file, ToDir: other, ToName: "new"}
		},
		"swapped": func(metadata.Ino) metadata.Edit {
			return metadata.Edit{Kind: metadata.EditSwap, Dir: metadata.RootIno, Name: "file", Ino: other, Mode: 0o100644, ToDir: other, ToName: "new"}
		},
	} {
		for _, starts := range []bool{false, true} {
			t.Run(fmt.Sprint(name, starts), func(t *testing.T) {
				fs := vfs.NewMem()
				s := open(t, Config{FS: fs})
				file, err := s.Create(ctx, metadata.RootIno, "file", metadata.New{})
				if err != nil {
					t.Fatal(err)
				}
				enter := metadata.Edit{Kind: metadata.EditEnter, Dir: metadata.RootIno, Name: "entered", Ino: other, Mode: 0o100644}
				if _, err := s.Prepare(ctx, tx, []metadata.Edit{of(file.Ino), enter}); err != nil {
					t.Fatal(err)
				}
				_, err = s.Prepare(ctx, tx+1, []metadata.Edit{{Kind: metadata.EditUnlink, Ino: file.Ino}})
				if err == nil {
					err = s.Commit(ctx, tx+1)
				}
				if err == nil {
					err = s.Reap(ctx, file.Ino)
				}
				if err == nil && starts {
					if err = s.Close(); err == nil {
						s = open(t, Config{FS: fs})
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Commit(ctx, tx); err != nil {
					t.Fatal(err) // readers wait until the commit succeeds
				}
				if e, err := s.Lookup(ctx, metadata.RootIno, "entered"); err != nil || e.Ino != other {
					t.Errorf("the other edit has made %+v, %v", e, err)
				}
				if all := s.InDoubt(); len(all) > 0 {
					t.Errorf("in doubt: %v", all)
				}
			})
		}
	}
}
