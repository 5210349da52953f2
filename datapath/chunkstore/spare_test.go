package chunkstore

import (
	"bytes"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// spareObjects is a set of objects of one size that are given back, the last one first.
type spareObjects struct {
	t     *testing.T
	s     *Store
	size  int64
	n     atomic.Int64
	given int
}

func (x *spareObjects) Bytes() int64 { return x.n.Load() * x.size }

func (x *spareObjects) GiveBack(n int64) bool {
	freed := int64(0)
	for ; freed < n && x.n.Load() > 0; freed += x.size {
		x.given++
		if err := x.s.Remove(ctx, ino+metadata.Ino(x.n.Add(-1))); err != nil {
			x.t.Error(err)
		}
	}
	return freed > 0
}

// TestSpare: spare objects take only free room, count as free, and are given back when a write needs their room, no
// more than it needs; after that the disk is full.
func TestSpare(t *testing.T) {
	const page, quota = 4096, 100 * 4096
	s := open(t, Config{Capacity: quota})
	x := &spareObjects{t: t, s: s, size: 10 * page}
	for i := range 10 {
		if err := s.WriteSpare(ctx, ino+metadata.Ino(i), make([]byte, 10*page), 0); err != nil {
			t.Fatal(err)
		}
		x.n.Add(1)
	}
	s.SetSpare(x)
	if err := s.WriteSpare(ctx, ino+50, make([]byte, page), 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("spare data on a full disk: %v, want ENOSPC", err)
	}
	if sp, err := s.Space(ctx); err != nil || sp.Free != quota || sp.Used != 0 {
		t.Errorf("Space = %+v, %v, want all free", sp, err)
	}
	for i := range 25 {
		if err := s.WriteAt(ctx, ino+100, make([]byte, page), int64(i)*page); err != nil {
			t.Fatalf("page %d: %v", i, err)
		}
	}
	if err := s.Allocate(ctx, ino+101, 0, 20*page); err != nil {
		t.Fatal(err)
	}
	if x.given != 5 {
		t.Errorf("%d of 10 objects were given back for 45 pages, want 5", x.given)
	}
	if sp, _ := s.Space(ctx); sp.Used != 45*page || sp.Free != quota-45*page {
		t.Errorf("Space = %+v after 45 pages", sp)
	}
	if err := s.WriteAt(ctx, ino+102, make([]byte, 60*page), 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write of more than there is: %v, want ENOSPC", err)
	}
}

// TestRename: the content of the other object appears in one step, in each store directory; no object is replaced, and
// the counts are unchanged.
func TestRename(t *testing.T) {
	s := open(t, Config{Dirs: []string{t.TempDir(), t.TempDir()}})
	want := bytes.Repeat([]byte("x"), 10000)
	for i := range metadata.Ino(20) {
		if err := s.WriteAt(ctx, ino+i, want, 0); err != nil {
			t.Fatal(err)
		}
		before, _ := s.Space(ctx)
		if err := s.Rename(ctx, ino+i, ino+1000+i); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 20000)
		if n, err := s.ReadAt(ctx, ino+1000+i, got, 0); err != nil || !bytes.Equal(got[:n], want) {
			t.Fatalf("renamed object: %d bytes, %v", n, err)
		}
		if n, err := s.ReadAt(ctx, ino+i, got, 0); n != 0 || err != nil {
			t.Fatalf("the old name: %d bytes, %v", n, err)
		}
		if after, _ := s.Space(ctx); after.Used != before.Used || after.Objects != before.Objects {
			t.Fatalf("Space was %+v and is %+v", before, after)
		}
	}
	if err := s.WriteAt(ctx, ino, want, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Rename(ctx, ino, ino+1000); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("Rename to a name that is taken = %v, want EEXIST", err)
	}
	if err := s.Rename(ctx, ino+77, ino+78); err == nil {
		t.Error("Rename of nothing succeeded")
	}
	for i := range metadata.Ino(20) {
		if err := s.Remove(ctx, ino+1000+i); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(ctx, ino); err != nil {
		t.Fatal(err)
	}
	if sp, _ := s.Space(ctx); sp.Used != 0 || sp.Objects != 0 {
		t.Errorf("Space = %+v with nothing left", sp)
	}
}
