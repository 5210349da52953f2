package fill_test

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// endFill runs a fill until it succeeds or fails.
func endFill(t *testing.T, f *fill.Fill) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.Run(ctx, func() {
		if _, whole := f.Done(); whole || f.Err() != nil {
			cancel()
		}
	})
	if _, whole := f.Done(); !whole || f.Err() != nil {
		t.Fatalf("the fill is done: %v, %v", whole, f.Err())
	}
}

// TestChangedFileCostsItself: a file that changed since the scan is reported as missing by name; the fill of all other
// files continues and succeeds.
func TestChangedFileCostsItself(t *testing.T) {
	j, f, files := treeFill(t, 30)
	const victim = "/src/tree/f07"
	j.FS.Mu.Lock()
	j.FS.Nodes[victim].Info.Mtime++
	j.FS.Mu.Unlock()
	endFill(t, f)
	t.Cleanup(func() { stageintest.NoError(t, f.Close()) })
	n, why := f.Missing()
	if all, more := f.Unreadable(); n != 1 || !errors.Is(why, syscall.EIO) || len(all) != 1 || more != 0 || all[0].Path != "f07" {
		t.Errorf("%d files are missing, %v; unreadable are %+v and %d more, want f07", n, why, all, more)
	}
	var ino metadata.Ino
	for id, r := range files.ByIno {
		if r.Path == "f07" {
			ino = id
		} else if jobtest.HasData(r) && !f.Stored(id) {
			t.Errorf("%s is not here", r.Path)
		}
	}
	if f.Stored(ino) {
		t.Error("the changed file is here")
	}
}

// TestSourceVanishes: files fetched before the source vanished are kept, the others are missing, and the fill ends: it
// does not retry each of many files several times.
func TestSourceVanishes(t *testing.T) {
	const files, before = 400, 50
	j, f, all := treeFill(t, files)
	var reads, failed atomic.Int64
	gone := func() error {
		if reads.Add(1) <= before {
			return nil
		}
		failed.Add(1)
		return syscall.EIO
	}
	j.FS.FailRead.Store(&gone)
	endFill(t, f)
	t.Cleanup(func() { stageintest.NoError(t, f.Close()) })
	here := 0
	for ino, r := range all.ByIno {
		if jobtest.HasData(r) && f.Stored(ino) {
			here++
			stageintest.NoError(t, f.Need(t.Context(), ino, 0, r.Attr.Size))
		}
	}
	if n, _ := f.Missing(); here != before || n != files-before {
		t.Errorf("%d files are here and %d missing, want %d and %d", here, n, before, files-before)
	}
	if most := int64(files - before + (fill.MaxTries-1)*(fill.MaxFailing+64)); failed.Load() > most {
		t.Errorf("%d reads failed, want at most %d", failed.Load(), most)
	}
}
