package stagein

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

func here(fetch func()) { fetch() }

func windowPiece(i int) PieceID { return PieceID{Ino: metadata.SealedIno(3, 0, uint32(i))} }

// TestWindow: pieces stay until their memory is needed, the one that was longest
// not looked at goes first, and the memory is never more than allowed.
func TestWindow(t *testing.T) {
	w := newCache(100)
	fetched := map[int]int{}
	look := func(i int, n int64) {
		t.Helper()
		err := w.View(context.Background(), windowPiece(i), n, here, func(b []byte) error {
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
	for _, i := range []int{1, 2, 1, 3, 1, 2} { // 3 takes the place of 2, and 2 that of 3
		look(i, 50)
	}
	look(4, 500) // larger than all: alone
	look(1, 50)
	want := map[int]int{1: 2, 2: 2, 3: 1, 4: 1}
	for i, n := range want {
		if fetched[i] != n {
			t.Errorf("piece %d was fetched %d times, want %d", i, fetched[i], n)
		}
	}
}

// TestWindowTogether: what many look at at a time is fetched once; a failure is
// told to all and not kept; who gives up ends nothing.
func TestWindowTogether(t *testing.T) {
	w := newCache(100)
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
	if err := w.View(gone, windowPiece(1), 60, begin, fetch(nil), func([]byte) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up: %v", err)
	}
	if err := w.View(gone, windowPiece(2), 60, begin, fetch(nil), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up while there was no room: %v", err)
	}
	var g errgroup.Group
	for i := range 20 {
		g.Go(func() error {
			return w.View(context.Background(), windowPiece(1+i%3), 60, begin, fetch(nil), func([]byte) { seen.Add(1) })
		})
	}
	close(gate)
	if err := g.Wait(); err != nil || seen.Load() != 20 {
		t.Errorf("%d of 20 have seen theirs, %v", seen.Load(), err)
	}
	wg.Wait()
	for range 2 {
		before := fetched.Load()
		if err := w.View(context.Background(), windowPiece(9), 10, begin, fetch(syscall.EIO), nil); !errors.Is(err, syscall.EIO) || fetched.Load() != before+1 {
			t.Errorf("a failure: %v", err)
		}
	}
	wg.Wait()
	if w.used > 100 || w.used < 0 {
		t.Errorf("%d bytes are used", w.used)
	}
}

// roomFor is four nodes that have so much room each, and what they need for items.
func roomFor(items []source.Item, room func() int64) (*PlanConfig, map[metadata.NodeID]int64) {
	cfg := &PlanConfig{Map: stageintest.ClusterMap(4), Free: func(metadata.NodeID) (int64, bool) { return room(), true }}
	cfg.setDefaults()
	need := map[metadata.NodeID]int64{}
	for i := range items {
		cfg.need(need, &items[i], cfg.Map.Up())
	}
	return cfg, need
}

// TestSpill: what stays in the source is chosen by hash alone; the nodes are
// filled evenly, and none beyond its room.
func TestSpill(t *testing.T) {
	r := stageintest.Rand(t)
	var items []source.Item
	total := int64(0)
	for i := range 20_000 {
		it := source.Item{Path: string(rune('a'+i%20)) + "/" + string(rune('a'+i/20%26)) + string(rune(0x100+i)), Mode: source.TypeRegular, Size: 1 + r.Int64N(200_000)}
		items = append(items, it)
		total += it.Size
	}
	room := total / 4 * 56 / 100
	cfg, need := roomFor(items, func() int64 { return room })
	stays, err := cfg.chooseOverflow(itemSlice(items), need)
	stageintest.NoError(t, err)
	has := map[metadata.NodeID]int64{}
	class, classStays := map[byte]float64{}, map[byte]float64{}
	for i := range items {
		class[items[i].Path[0]]++
		if stays[i] {
			classStays[items[i].Path[0]]++
			continue
		}
		has[cfg.Map.FileOwner(items[i].Path)] += (items[i].Size + pageSize - 1) / pageSize * pageSize
	}
	for _, id := range cfg.Map.Up() {
		if has[id] > room || has[id] < room*98/100 {
			t.Errorf("node %d has %d of %d bytes", id, has[id], room)
		}
	}
	for c, n := range class {
		if f := classStays[c] / n; f < 0.36 || f > 0.52 {
			t.Errorf("of class %c, %.2f stay in the source, want about 0.45", c, f)
		}
	}
	cfg.Request.Spill = SpillFail
	if got, err := cfg.chooseOverflow(itemSlice(items), need); got != nil || err != nil {
		t.Errorf("with spill=fail, %d stay, %v", len(got), err)
	}
	cfg.Request.Spill, room = SpillPFS, total
	if got, err := cfg.chooseOverflow(itemSlice(items), need); got != nil || err != nil {
		t.Errorf("with room for all, %d stay, %v", len(got), err)
	}
}

// TestSpillOfLarge: a file that is too large for the nodes stays in the source, and
// the others are as many as there is room for.
func TestSpillOfLarge(t *testing.T) {
	const room, small, n = 20 << 20, 60 << 10, 2000
	items := []source.Item{{Path: "striped", Mode: source.TypeRegular, Size: 80 << 20}, {Path: "whole", Mode: source.TypeRegular, Size: 30 << 20}}
	for i := range n {
		items = append(items, source.Item{Path: fmt.Sprint("small", i), Mode: source.TypeRegular, Size: small})
	}
	cfg, need := roomFor(items, func() int64 { return room })
	stays, err := cfg.chooseOverflow(itemSlice(items), need)
	stageintest.NoError(t, err)
	if !stays[0] || !stays[1] {
		t.Errorf("striped stays: %v, whole: %v", stays[0], stays[1])
	}
	has := map[metadata.NodeID]int64{}
	for i := range items {
		if !stays[i] {
			has[cfg.Map.FileOwner(items[i].Path)] += small
		}
	}
	for _, id := range cfg.Map.Up() {
		if has[id] > room || has[id] < room*95/100 {
			t.Errorf("node %d has %d of %d bytes", id, has[id], room)
		}
	}
}
