package chunkstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// twin models an object as bytes, without a store: the expected content, and the blocks that are corrupt.
type twin struct {
	data []byte
	bad  map[int]bool
}

func (w *twin) write(p []byte, off int) {
	for len(w.data) < off+len(p) {
		w.data = append(w.data, 0)
	}
	copy(w.data[off:], p)
	for i := off / block; i*block < off+len(p); i++ {
		if off <= i*block && off+len(p) >= (i+1)*block {
			delete(w.bad, i)
		}
	}
}

func (w *twin) truncate(size int) {
	w.data = w.data[:min(size, len(w.data))]
	for i := range w.bad {
		if i*block >= size {
			delete(w.bad, i)
		}
	}
}

func (w *twin) punch(off, n int) {
	end := min(off+n, len(w.data))
	if off < end {
		clear(w.data[off:end])
	}
	for i := range w.bad {
		if off <= i*block && off+n >= (i+1)*block {
			delete(w.bad, i)
		}
	}
}

// corrupted reports whether a read of n bytes at off includes a corrupt block.
func (w *twin) corrupted(off, n int) bool {
	for i := range w.bad {
		if off < len(w.data) && i*block < min(off+n, len(w.data)) && (i+1)*block > off {
			return true
		}
	}
	return false
}

// TestSums: under random operations, and random damage to the file, a read returns the bytes written, or EIO if and
// only if one of its blocks was damaged.
func TestSums(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range 20 {
		dir := t.TempDir()
		s := open(t, Config{Dirs: []string{dir}, MaxOpen: 1 + round%3})
		w := &twin{bad: map[int]bool{}}
		const span = 6 * block
		for step := range 300 {
			off, n := r.IntN(span), 1+r.IntN(3*block)
			if r.IntN(3) == 0 {
				off, n = off&^(block-1), (n+block-1)&^(block-1)
			}
			var err error
			switch r.IntN(8) {
			case 0, 1, 2:
				p := make([]byte, n)
				for i := range p {
					p[i] = byte(r.Uint32())
				}
				err = s.WriteAt(ctx, ino, p, int64(off))
				w.write(p, off)
			case 3:
				err = s.Truncate(ctx, ino, int64(off))
				w.truncate(off)
			case 4:
				err = s.Punch(ctx, ino, int64(off), int64(n))
				w.punch(off, n)
			case 5:
				if r.IntN(8) == 0 {
					w.damage(t, s, r, dir)
				}
			default:
				w.read(t, s, off, n, fmt.Sprintf("seed %d, round %d, step %d", seed, round, step))
			}
			if err != nil {
				t.Fatalf("seed %d, round %d, step %d: %v", seed, round, step, err)
			}
		}
		w.read(t, s, 0, 2*span, fmt.Sprintf("seed %d, the whole of round %d", seed, round))
	}
}

// damage flips a bit of a block that has a checksum.
func (w *twin) damage(t *testing.T, s *Store, r *rand.Rand, dir string) {
	t.Helper()
	if len(w.data) == 0 {
		return
	}
	at := r.IntN(len(w.data))
	if has := s.sums.of(ino).at(int64(at/block)) != 0; !has || w.bad[at/block] {
		return
	}
	flip(t, dir, ino, int64(at))
	w.data[at] ^= 1
	w.bad[at/block] = true
}

// flip flips a bit of an object's file.
func flip(t *testing.T, dir string, i metadata.Ino, at int64) {
	t.Helper()
	f, err := os.OpenFile((&place{dir: dir}).path(i), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func (w *twin) read(t *testing.T, s *Store, off, n int, what string) {
	t.Helper()
	p := make([]byte, n)
	k, err := s.ReadAt(ctx, ino, p, int64(off))
	want := w.data[min(off, len(w.data)):min(off+n, len(w.data))]
	switch {
	case w.corrupted(off, n):
		if !errors.Is(err, syscall.EIO) {
			t.Fatalf("%s: read of %d bytes at %d = %v, want EIO", what, n, off, err)
		}
	case err != nil || !bytes.Equal(p[:k], want):
		t.Fatalf("%s: read of %d bytes at %d = %d, %v, want %d bytes that were written", what, n, off, k, err, len(want))
	}
}

// TestSumsTogether: reads never fail while others write and cut the same blocks.
func TestSumsTogether(t *testing.T) {
	s := open(t, Config{})
	var wg sync.WaitGroup
	for k := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(k), 1))
			for range 400 {
				off, n := r.Int64N(3*block), 1+r.IntN(2*block)
				var err error
				switch r.IntN(8) {
				case 0:
					err = s.Truncate(ctx, ino, off)
				case 1:
					err = s.Punch(ctx, ino, off, int64(n))
				case 2:
					if k == 0 {
						err = s.Remove(ctx, ino)
					}
				case 3, 4:
					err = s.WriteAt(ctx, ino, bytes.Repeat([]byte{byte(k)}, n), off)
				default:
					_, err = s.ReadAt(ctx, ino, make([]byte, n), off)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := s.Corrupt(); n != 0 {
		t.Errorf("%d blocks count as corrupt", n)
	}
}

// TestHashes: each hash usable for sums detects every flipped bit of a block.
func TestHashes(t *testing.T) {
	for _, vectors := range []bool{false, true} {
		h := chooseHash(vectors)
		b := bytes.Repeat([]byte("0123456789abcdef"), block/16)
		whole := h(b)
		for i := range 8 * block {
			b[i/8] ^= 1 << (i % 8)
			if h(b) == whole {
				t.Fatalf("vectors %v: bit %d is not in the checksum", vectors, i)
			}
			b[i/8] ^= 1 << (i % 8)
		}
	}
}

// TestSumsOfOpenObjects: the limit includes open objects; sums dropped while their object is open are restored by the
// next write.
func TestSumsOfOpenObjects(t *testing.T) {
	dir := t.TempDir()
	const limit = 8 << 10
	s := open(t, Config{Dirs: []string{dir}, Sums: limit, MaxOpen: 200})
	for round := range metadata.Ino(2) {
		for i := range metadata.Ino(100) {
			write(t, s, ino+i, 3*block, 0)
			if s.sums.size > limit {
				t.Fatalf("%d bytes of sums, want at most %d", s.sums.size, limit)
			}
		}
		flip(t, dir, ino+99-round, 5)
		if _, err := s.ReadAt(ctx, ino+99-round, make([]byte, block), 0); !errors.Is(err, syscall.EIO) {
			t.Errorf("round %d: read of an object that was written last: %v, want EIO", round, err)
		}
	}
}

// TestSumsWaitForNoDrive: while a write to an object hangs in its drive, and another one has ended, the sums of all
// other objects are found.
func TestSumsWaitForNoDrive(t *testing.T) {
	s := open(t, Config{Dirs: []string{t.TempDir()}})
	write(t, s, ino, block, 0)
	o := s.sums.of(ino)
	o.mu.Lock() // like the write that hangs
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		s.sums.settle(o)
		s.sums.of(ino + 1)
	}()
	select {
	case <-counted:
	case <-time.After(time.Minute):
		t.Error("the sums of all objects wait for one write")
	}
	o.mu.Unlock()
	<-counted
}

// TestSumsAreBounded: sums of other objects are dropped, and then not verified.
func TestSumsAreBounded(t *testing.T) {
	dir := t.TempDir()
	const limit = 8 << 10
	s := open(t, Config{Dirs: []string{dir}, Sums: limit})
	for i := range metadata.Ino(100) {
		write(t, s, ino+i, 3*block, 0)
		if s.sums.size > limit {
			t.Fatalf("%d bytes of sums, want at most %d", s.sums.size, limit)
		}
	}
	flip(t, dir, ino, 5)
	if _, err := s.ReadAt(ctx, ino, make([]byte, block), 0); err != nil {
		t.Errorf("the first object is compared: %v", err)
	}
	flip(t, dir, ino+99, 5)
	if _, err := s.ReadAt(ctx, ino+99, make([]byte, block), 0); !errors.Is(err, syscall.EIO) {
		t.Errorf("the last object: %v, want EIO", err)
	}
	for i := range metadata.Ino(100) {
		if err := s.Remove(ctx, ino+i); err != nil {
			t.Fatal(err)
		}
	}
	if n, m := s.sums.objects.Len(), s.sums.size; n != 0 || m != 0 {
		t.Errorf("%d objects have %d bytes of sums after all are removed", n, m)
	}
}

// TestNoSums: sums can be switched off, datasets have none, and a restart drops them.
func TestNoSums(t *testing.T) {
	for what, c := range map[string]struct {
		sums int64
		ino  metadata.Ino
	}{
		"off":       {-1, ino},
		"a dataset": {0, metadata.SealedIno(1, 0, 1)},
		"a restart": {0, ino + 1},
	} {
		dir := t.TempDir()
		s := open(t, Config{Dirs: []string{dir}, Sums: c.sums})
		write(t, s, c.ino, block, 0)
		if what == "a restart" {
			s = open(t, Config{Dirs: []string{dir}})
		}
		flip(t, dir, c.ino, 5)
		if _, err := s.ReadAt(ctx, c.ino, make([]byte, block), 0); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
