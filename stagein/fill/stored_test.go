package fill_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// TestStored: each file is reported once, when it is recorded as present and before a waiting read continues.
func TestStored(t *testing.T) {
	j, f, files := treeFill(t, 20)
	f.NoneStriped()
	var mu sync.Mutex
	seen := make(map[metadata.Ino]int)
	f.Config().Stored = func(ino metadata.Ino) {
		mu.Lock()
		defer mu.Unlock()
		if seen[ino]++; !f.Present(fill.PieceID{Ino: ino}) {
			t.Errorf("%s is reported before it is present", files.ByIno[ino].Path)
		}
	}
	told := func(ino metadata.Ino) int {
		mu.Lock()
		defer mu.Unlock()
		return seen[ino]
	}
	for ino, r := range files.ByIno {
		if r.Path == "f07" {
			if err := f.Need(t.Context(), ino, 0, 1); err != nil || told(ino) != 1 {
				t.Errorf("a file that was read on demand is reported %d times, %v", told(ino), err)
			}
		}
	}
	if err := errors.Join(j.RunFill(t.Context(), f), f.Close()); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 20 {
		t.Errorf("%d of 20 files are reported", len(seen))
	}
	for ino, n := range seen {
		if n != 1 {
			t.Errorf("%s is reported %d times", files.ByIno[ino].Path, n)
		}
	}
}
