package home

import (
	"slices"
	"sync"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestRenameRecallsWhatItReplaces: a new file takes the name after Rename has looked up the inodes of the names.
func TestRenameRecallsWhatItReplaces(t *testing.T) {
	ctx, hs := t.Context(), homes(t, 3)
	x, err := hs[0].Create(ctx, metadata.RootIno, "x", newFile())
	if err != nil {
		t.Fatal(err)
	}
	var y metadata.Attr
	var once sync.Once
	hs[1].SetRevoke(func([]metadata.LeaseKey) {
		once.Do(func() { // in between, another node creates y and node 2 opens it
			var err error
			if y, err = hs[0].Create(ctx, metadata.RootIno, "y", newFile()); err != nil {
				t.Error(err)
			}
			if _, l, err := hs[0].GetattrLease(ctx, y.Ino, 2); err != nil || l.Attr == 0 {
				t.Error(l, err)
			}
		})
	})
	var mu sync.Mutex
	var forgot []metadata.LeaseKey
	hs[2].SetRevoke(func(keys []metadata.LeaseKey) {
		mu.Lock()
		defer mu.Unlock()
		forgot = append(forgot, keys...)
	})
	if _, l, err := hs[0].GetattrLease(ctx, x.Ino, 1); err != nil || l.Attr == 0 {
		t.Fatal(l, err)
	}
	old, err := hs[0].Rename(ctx, metadata.Rename{Dir: metadata.RootIno, Name: "x", NewDir: metadata.RootIno, NewName: "y"})
	if err != nil || old == nil || old.Ino != y.Ino {
		t.Fatal(old, err)
	}
	a, err := hs[0].Getattr(ctx, y.Ino)
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(forgot, attrKey(y.Ino)) {
		t.Errorf("node 2 keeps its lease of %v, which has %d links now (%v); it forgot %v", y.Ino, a.Nlink, err, forgot)
	}
}
