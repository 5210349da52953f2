package fsclient_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestLockDuringClose: the last close of a file keeps the locks of a process that opens the file concurrently.
func TestLockDuringClose(t *testing.T) {
	l := locked(t, metadata.PosixLock)
	c, f, ino := l.cs[0], l.f, l.f.Ino()
	unlock := func(node int, owner uint64) {
		if err := l.cs[node].UnlockAll(ctx, ino, metadata.PosixLock, owner); err != nil {
			t.Fatal(err)
		}
	}
	unlock(0, 7)
	for i := range 2000 {
		var wg sync.WaitGroup
		was := f
		wg.Go(func() { _ = was.Close(ctx) })
		for range 4 { // keep the lock table busy
			wg.Go(func() {
				for range 100 {
					_ = c.UnlockAll(ctx, ino, metadata.PosixLock, 8)
				}
			})
		}
		for c.Stats().Open > 0 {
			runtime.Gosched()
		}
		var err error
		if f, err = c.Open(ctx, ino); err != nil {
			t.Fatal(err)
		}
		if err := l.lock(0, metadata.PosixLock, 7); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		unlock(0, 7)
		if err := l.lock(1, metadata.PosixLock, 9); err != nil {
			t.Fatalf("round %d: the other node: %v after the unlock", i, err)
		}
		unlock(1, 9)
	}
	if err := f.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
