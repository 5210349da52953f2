package testcluster

import (
	"context"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestReplacedIsOpenable: a file that a process has looked up can be opened although renames on another node have
// since replaced its name more than once.
func TestReplacedIsOpenable(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 2})
	ctx := context.Background()
	w, r := c.Nodes[0].Client, c.Nodes[1].Client
	replace := func() {
		t.Helper()
		if _, err := w.Create(ctx, metadata.RootIno, "new", metadata.New{Mode: syscall.S_IFREG | 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Rename(ctx, metadata.Rename{Dir: metadata.RootIno, Name: "new", NewDir: metadata.RootIno, NewName: "f"}); err != nil {
			t.Fatal(err)
		}
	}
	replace()
	for range 20 {
		ino, err := r.Resolve(ctx, metadata.RootIno, "f")
		if err != nil {
			t.Fatal(err)
		}
		replace()
		replace()
		f, err := r.Open(ctx, ino)
		if err != nil {
			t.Fatalf("open of a file that was looked up before it was replaced: %v", err)
		}
		if err := f.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}
