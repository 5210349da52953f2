package cache

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
)

func here(fetch func()) { fetch() }

// TestLeastRecentlyUsed: pieces stay until their memory is needed, the least recently used piece is evicted first, and
// the memory never exceeds its limit.
func TestLeastRecentlyUsed(t *testing.T) {
	w := New[int](100)
	fetched := map[int]int{}
	look := func(i int, n int64) {
		t.Helper()
		err := w.View(context.Background(), i, n, here, func(b []byte) error {
			fetched[i]++
			b[0] = byte(i)
			return nil
		}, func(b []byte) {
			if int64(len(b)) != n || b[0] != byte(i) {
				t.Errorf("piece %d is %d bytes that begin with %d", i, len(b), b[0])
			}
		})
		if err != nil {
			t.Error(err)
		}
		if w.used > 100 && n <= 100 {
			t.Errorf("%d bytes are used", w.used)
		}
	}
	for _, i := range []int{1, 2, 1, 3, 1, 2} { // 3 replaces 2, and 2 replaces 3
		look(i, 50)
	}
	look(4, 500) // larger than all the memory: cached alone
	look(1, 50)
	want := map[int]int{1: 2, 2: 2, 3: 1, 4: 1}
	for i, n := range want {
		if fetched[i] != n {
			t.Errorf("piece %d was fetched %d times, want %d", i, fetched[i], n)
		}
	}
}

// TestSingleFlight: concurrent lookups of a piece fetch it once; all get the error of a failure, which is not cached; a
// caller that gives up does not end the fetch.
func TestSingleFlight(t *testing.T) {
	w := New[int](100)
	var fetched, seen atomic.Int64
	gate := make(chan struct{})
	var wg sync.WaitGroup
	begin := func(fetch func()) { wg.Go(fetch) }
	fetch := func(err error) func([]byte) error {
		return func([]byte) error {
			<-gate
			fetched.Add(1)
			return err
		}
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.View(gone, 1, 60, begin, fetch(nil), func([]byte) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up: %v", err)
	}
	if err := w.View(gone, 2, 60, begin, fetch(nil), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up while there was no room: %v", err)
	}
	var g errgroup.Group
	for i := range 20 {
		g.Go(func() error {
			return w.View(context.Background(), 1+i%3, 60, begin, fetch(nil), func([]byte) { seen.Add(1) })
		})
	}
	close(gate)
	if err := g.Wait(); err != nil || seen.Load() != 20 {
		t.Errorf("%d of 20 have seen theirs, %v", seen.Load(), err)
	}
	wg.Wait()
	for range 2 {
		before := fetched.Load()
		if err := w.View(context.Background(), 9, 10, begin, fetch(syscall.EIO), nil); !errors.Is(err, syscall.EIO) || fetched.Load() != before+1 {
			t.Errorf("a failure: %v", err)
		}
	}
	wg.Wait()
	if w.used > 100 || w.used < 0 {
		t.Errorf("%d bytes are used", w.used)
	}
}

// TestBegin: viewers wait for a piece that a caller began, and it is evicted like others. Begin refuses a piece that is
// cached or being read, or for which there is no room.
func TestBegin(t *testing.T) {
	w := New[int](100)
	b, done, ok := w.Begin(1, 60)
	if !ok || len(b) != 60 {
		t.Fatalf("Begin = %d bytes, %v", len(b), ok)
	}
	for key, n := range map[int]int64{1: 60, 2: 60} {
		if _, _, ok := w.Begin(key, n); ok {
			t.Errorf("piece %d was begun while the first one was being read", key)
		}
	}
	began := func(func()) { t.Error("a viewer fetches") }
	var g errgroup.Group
	for range 3 {
		g.Go(func() error {
			return w.View(context.Background(), 1, 60, began, nil, func(b []byte) {
				if b[59] != 7 {
					t.Errorf("a viewer sees %v", b)
				}
			})
		})
	}
	b[59] = 7
	done(nil)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if _, _, ok := w.Begin(1, 60); ok {
		t.Error("a piece was begun that is there")
	}
	_, done, ok = w.Begin(2, 60) // replaces the first one
	if !ok {
		t.Fatal("a piece was not evicted for another one")
	}
	done(syscall.EIO)
	if w.used != 0 || len(w.entries) != 0 {
		t.Errorf("%d bytes of %d pieces are used after a failure", w.used, len(w.entries))
	}
}
