package dataset

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
)

func ino(ds metadata.DatasetID, part uint16, seq uint32) metadata.Ino {
	return metadata.SealedIno(ds, part, seq)
}

// TestScratchIsReserved: datasets do not use the reserve of scratch, except to finish objects that they have begun;
// scratch can use all of its reserve.
func TestScratchIsReserved(t *testing.T) {
	const capacity, block = 1 << 20, 64 << 10
	s, err := chunkstore.Open(chunkstore.Config{Dirs: []string{filepath.Join(t.TempDir(), "store")}, Capacity: capacity})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	f := NewFence(t.Context(), s, job.Reserve{Percent: 25})
	p := make([]byte, block)
	fill := func(of func(i uint32) metadata.Ino) (n int64) {
		for i := range uint32(2 * capacity / block) {
			if err := f.Write(t.Context(), of(i), p, 0); errors.Is(err, syscall.ENOSPC) {
				return n
			} else if err != nil {
				t.Fatal(err)
			}
			n += block
		}
		return n
	}
	staged := fill(func(i uint32) metadata.Ino { return ino(7, 3, i+1) })
	if staged > capacity*3/4 || staged < capacity/2 {
		t.Errorf("datasets took %d of %d bytes, want 3/4 at most", staged, capacity)
	}
	if err := f.Write(t.Context(), ino(7, 3, 1), p, block); err != nil {
		t.Errorf("a file that is half here cannot be finished: %v", err)
	}
	if n := fill(func(i uint32) metadata.Ino { return metadata.RootIno + 1 + metadata.Ino(i) }); staged+n+block < capacity-2*block {
		t.Errorf("scratch took %d bytes, beside %d bytes of datasets, of a capacity of %d", n, staged+block, capacity)
	}
}

// TestFence: late writes are refused, and the data that they stored is removed.
func TestFence(t *testing.T) {
	f := NewFence(t.Context(), newStore(t), job.Reserve{})
	write := func(i metadata.Ino) error { return f.Write(t.Context(), i, []byte("x"), 0) }
	has := func(i metadata.Ino) bool {
		n, err := f.store.ReadAt(t.Context(), i, make([]byte, 1), 0)
		return err == nil && n == 1
	}
	kept, late, shared, other := ino(7, 3, 10), ino(7, 3, 11), ino(7, 0, 5), ino(8, 3, 11)
	live := metadata.Ino(metadata.RootIno + 1)
	for _, i := range []metadata.Ino{kept, late, shared, other, live} {
		if err := write(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Exclude(7, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.Exclude(7, []stagein.Try{{Number: 3, Kept: 10}}); err != nil {
		t.Fatal(err)
	}
	if !has(kept) || has(late) || !has(shared) || !has(other) {
		t.Error("what is removed is not what was excluded")
	}
	if err := write(late); !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("a write of an excluded try: %v, want ECANCELED", err)
	}
	for _, i := range []metadata.Ino{kept, shared, other} {
		if err := write(i); err != nil {
			t.Errorf("a write of %v: %v", i, err)
		}
	}
	// An exclusion is permanent.
	if err := f.Exclude(7, []stagein.Try{{Number: 3, Kept: 20}, {Number: 4}}); err != nil {
		t.Fatal(err)
	}
	if err := write(late); !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("a write of a try that was excluded before: %v", err)
	}
	f.End(7)
	if err := write(kept); !errors.Is(err, syscall.ECANCELED) || !f.Ended(7) || f.Ended(8) {
		t.Errorf("a write to a dataset that failed: %v", err)
	}
	if !f.ClaimRemoval(7) || f.ClaimRemoval(7) {
		t.Error("not exactly one may remove the dataset")
	}
	if n, err := f.RemoveObjects(7); n != 2 || err != nil || has(kept) || !has(other) || !has(live) {
		t.Errorf("%d objects were removed, %v, want 2", n, err)
	}
}

// TestFenceWaits: when End returns, no write is in progress.
func TestFenceWaits(t *testing.T) {
	f := NewFence(t.Context(), newStore(t), job.Reserve{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if f.Write(t.Context(), ino(7, 1, uint32(k+1)), []byte("x"), 0) != nil {
					return
				}
			}
		})
	}
	f.End(7)
	if _, err := f.RemoveObjects(7); err != nil {
		t.Fatal(err)
	}
	s, err := f.store.Space(t.Context())
	cancel()
	wg.Wait()
	if after, e := f.store.Space(t.Context()); err != nil || e != nil || s.Used != 0 || after.Used != 0 {
		t.Errorf("%d and %d bytes are used after the end, %v, %v", s.Used, after.Used, err, e)
	}
}
