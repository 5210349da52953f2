package chunkstore

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
)

// block is the unit of checksums: what the kernel reads at least, and an allocation unit.
const block = pageSize

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumOf is the checksum of a block. Bytes behind the end of an object count as zeros, so that an
// object can grow without a new sum. 0 is no checksum.
func sumOf(b *[block]byte) uint32 { return nonzero(crc32.Checksum(b[:], castagnoli)) }

func nonzero(c uint32) uint32 {
	if c == 0 {
		return 1
	}
	return c
}

// sums is the checksums of objects, in memory: at most limit bytes, of the objects used last. A
// block without one is not compared.
type sums struct {
	limit int64
	bad   atomic.Int64 // blocks that were found corrupt

	mu      sync.Mutex
	size    int64                                     // under mu: of all, in bytes
	objects map[metadata.Ino]*objectSums              // under mu
	idle    *simplelru.LRU[metadata.Ino, *objectSums] // under mu: those without refs
}

// objectSums is the checksums of one object.
type objectSums struct {
	ino  metadata.Ino
	refs int   // under sums.mu
	size int64 // under sums.mu: as it counts in sums.size

	// mu is held while bytes and their checksums are changed, in that order.
	mu    sync.RWMutex
	bytes int64              // under mu: that parts takes
	parts map[int64][]uint32 // under mu: of partBlocks blocks each; shorter ones have no checksum behind
	bad   map[int64]struct{} // under mu: blocks that were found corrupt
}

const (
	partBlocks = 1024
	sumsCost   = 512 // bytes that the sums of an object take beside the sums, about
)

func newSums(limit int64) *sums {
	idle, _ := simplelru.NewLRU[metadata.Ino, *objectSums](math.MaxInt, nil) // give evicts
	return &sums{limit: limit, objects: map[metadata.Ino]*objectSums{}, idle: idle}
}

// take returns the checksums of ino; give returns them. Without create it returns nil if there
// are none.
func (t *sums) take(ino metadata.Ino, create bool) *objectSums {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.objects[ino]
	if o == nil {
		if !create {
			return nil
		}
		o = &objectSums{ino: ino, parts: map[int64][]uint32{}}
		t.objects[ino] = o
	}
	o.refs++
	t.idle.Remove(ino)
	return o
}

// give ends a use, and forgets the sums of other objects if there are too many.
func (t *sums) give(o *objectSums) {
	o.mu.RLock()
	size := sumsCost + o.bytes
	empty := len(o.parts) == 0
	o.mu.RUnlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.size += size - o.size
	o.size = size
	if o.refs--; o.refs == 0 {
		if empty {
			t.forget(o)
		} else {
			t.idle.Add(o.ino, o)
		}
	}
	for t.size > t.limit {
		_, v, ok := t.idle.RemoveOldest()
		if !ok {
			return
		}
		t.forget(v)
	}
}

// forget is called with mu held.
func (t *sums) forget(o *objectSums) {
	t.size -= o.size
	delete(t.objects, o.ino)
}

// at is the checksum of a block; o.mu is held.
func (o *objectSums) at(i int64) uint32 {
	if p := o.parts[i/partBlocks]; i%partBlocks < int64(len(p)) {
		return p[i%partBlocks]
	}
	return 0
}

// set sets the checksum of a block; o.mu is held.
func (o *objectSums) set(i int64, sum uint32) {
	p, at := o.parts[i/partBlocks], int(i%partBlocks)
	if at >= len(p) {
		if sum == 0 {
			return
		}
		was := cap(p)
		p = append(p, make([]uint32, at+1-len(p))...)
		o.bytes += 4 * int64(cap(p)-was)
		o.parts[i/partBlocks] = p
	}
	p[at] = sum
}

// clear drops the checksums from block i on; o.mu is held.
func (o *objectSums) clear(i, end int64) {
	for k, p := range o.parts {
		for at := max(i-k*partBlocks, 0); at < min(end-k*partBlocks, int64(len(p))); at++ {
			o.set(k*partBlocks+at, 0)
		}
		if i <= k*partBlocks && end >= (k+1)*partBlocks {
			delete(o.parts, k)
			o.bytes -= 4 * int64(cap(p))
		}
	}
}

// blocks are buffers.
var blocks = sync.Pool{New: func() any { return new([block]byte) }}

// readBlock reads block i of f into b.
func readBlock(f File, b *[block]byte, i int64) error {
	n, err := f.ReadAt(b[:], i*block)
	clear(b[n:])
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// summed returns the checksums of o's object; nil if it has none and needs none.
func (s *Store) summed(o *object, create bool) *objectSums {
	if s.sums == nil || o.ino.Sealed() {
		return nil
	}
	return s.sums.take(o.ino, create)
}

// readObject reads from o, and compares what it has read with the checksums.
func (s *Store) readObject(o *object, p []byte, off int64) (int, error) {
	n, err := o.file.ReadAt(p, off)
	if n == 0 || err != nil && !errors.Is(err, io.EOF) {
		return n, err
	}
	t := s.summed(o, false)
	if t == nil {
		return n, err
	}
	defer s.sums.give(t)
	t.mu.RLock()
	bad, cerr := t.check(o.file, p, n, off)
	t.mu.RUnlock()
	if bad < 0 && cerr == nil {
		return n, err
	}
	// A write may have changed bytes or checksums since they were read.
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, err = o.file.ReadAt(p, off); err != nil && !errors.Is(err, io.EOF) {
		return n, err
	}
	if bad, cerr = t.check(o.file, p, n, off); cerr != nil {
		return 0, cerr
	}
	if bad >= 0 {
		s.corrupt(t, bad)
		return 0, fmt.Errorf("the bytes at %d differ from their checksum: %w", bad*block, syscall.EIO)
	}
	return n, err
}

// check compares p[:n], read at off, with the checksums, and returns the first block that
// differs, or -1. Of blocks that p has only in part it reads the rest; t.mu is held.
func (t *objectSums) check(f File, p []byte, n int, off int64) (bad int64, err error) {
	end := off + int64(n)
	for i := off / block; i*block < end; i++ {
		want := t.at(i)
		if want == 0 {
			continue
		}
		from, to := i*block-off, (i+1)*block-off
		var got uint32
		if from >= 0 && to <= int64(n) {
			got = nonzero(crc32.Checksum(p[from:to], castagnoli))
		} else if from >= 0 && n < len(p) { // the end of the object
			got = sumOfTail(p[from:n])
		} else if got, err = sumAround(f, p[max(from, 0):min(to, int64(n))], i, max(-from, 0)); err != nil {
			return -1, err
		}
		if got != want {
			return i, nil
		}
	}
	return -1, nil
}

// sumOfTail is the checksum of a block with the bytes p at the end of an object.
func sumOfTail(p []byte) uint32 {
	b := blocks.Get().(*[block]byte)
	defer blocks.Put(b)
	clear(b[copy(b[:], p):])
	return sumOf(b)
}

// sumAround reads block i for its checksum and fills p with its bytes from at on, so that they
// are those that the checksum is of.
func sumAround(f File, p []byte, i, at int64) (uint32, error) {
	b := blocks.Get().(*[block]byte)
	defer blocks.Put(b)
	if err := readBlock(f, b, i); err != nil {
		return 0, err
	}
	copy(p, b[at:])
	return sumOf(b), nil
}

// corrupt counts and logs a corrupt block, once; t.mu is held.
func (s *Store) corrupt(t *objectSums, i int64) {
	if _, known := t.bad[i]; known {
		return
	}
	if t.bad == nil {
		t.bad = map[int64]struct{}{}
	}
	t.bad[i] = struct{}{}
	s.sums.bad.Add(1)
	s.cfg.Log.WithFields(logrus.Fields{"inode": t.ino.String(), "offset": i * block}).
		Error("a drive of this node returned other bytes than were written: reads of them fail")
}

// Corrupt is the number of blocks that were found corrupt.
func (s *Store) Corrupt() int64 {
	if s.sums == nil {
		return 0
	}
	return s.sums.bad.Load()
}

// change runs fn, which replaces the n bytes at off by p, or by zeros if p is nil, and updates
// the checksums.
func (s *Store) change(o *object, p []byte, off, n int64, fn func() error) error {
	t := s.summed(o, true)
	if t == nil || n == 0 {
		return fn()
	}
	defer s.sums.give(t)
	first, last := off/block, (off+n-1)/block
	fresh := sumsOf(p, off)
	t.mu.Lock()
	defer t.mu.Unlock()
	var edges [2]uint32 // of the first and the last block, if they change in part
	for k, i := range [2]int64{first, last} {
		from, to := max(off, i*block), min(off+n, (i+1)*block)
		if to-from == block || k == 1 && i == first {
			continue
		}
		var err error
		if edges[k], err = s.changed(t, o.file, i, p, from-off, from-i*block, to-from); err != nil {
			return err
		}
	}
	if err := fn(); err != nil {
		t.clear(first, last+1) // which bytes were changed is not known
		return err
	}
	if p == nil {
		t.clear(first, last+1)
	}
	for k := len(fresh) - 1; k >= 0; k-- { // the last makes room for all
		if fresh[k] != 0 {
			t.set(first+int64(k), fresh[k])
			delete(t.bad, first+int64(k))
		}
	}
	for k, i := range [2]int64{first, last} {
		if edges[k] != 0 {
			t.set(i, edges[k])
		}
	}
	return nil
}

// sumsOf returns the checksums of the blocks that p, written at off, begins to end in; of those
// that it has in part 0.
func sumsOf(p []byte, off int64) []uint32 {
	if len(p) == 0 {
		return nil
	}
	end := off + int64(len(p))
	sums := make([]uint32, (end-1)/block-off/block+1)
	for k := range sums {
		from := (off/block+int64(k))*block - off
		if from >= 0 && from+block <= int64(len(p)) {
			sums[k] = nonzero(crc32.Checksum(p[from:][:block], castagnoli))
		}
	}
	return sums
}

// changed returns the checksum of block i after its n bytes at at are replaced by those of p from
// from on, or by zeros. That of a corrupt block stays wrong. t.mu is held.
func (s *Store) changed(t *objectSums, f File, i int64, p []byte, from, at, n int64) (uint32, error) {
	b := blocks.Get().(*[block]byte)
	defer blocks.Put(b)
	if err := readBlock(f, b, i); err != nil {
		return 0, err
	}
	want := t.at(i)
	good := want == 0 || sumOf(b) == want
	if p == nil {
		clear(b[at : at+n])
	} else {
		copy(b[at:at+n], p[from:])
	}
	sum := sumOf(b)
	if !good {
		s.corrupt(t, i)
		sum = nonzero(^sum)
	}
	return sum, nil
}

// cut runs fn, which cuts o to size bytes. No other call uses o.
func (s *Store) cut(o *object, size int64, fn func() error) error {
	t := s.summed(o, false)
	if t == nil {
		return fn()
	}
	defer s.sums.give(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	i, at := size/block, size%block
	var sum uint32
	if at > 0 {
		var err error
		if sum, err = s.changed(t, o.file, i, nil, 0, at, block-at); err != nil {
			return err
		}
	}
	if err := fn(); err != nil {
		t.clear(i, math.MaxInt64)
		return err
	}
	t.clear(i, math.MaxInt64)
	t.set(i, sum)
	return nil
}

// forgetSums drops the checksums of o, which is about to be removed. No other call uses o.
func (s *Store) forgetSums(o *object) {
	if t := s.summed(o, false); t != nil {
		t.mu.Lock()
		t.clear(0, math.MaxInt64)
		clear(t.bad)
		t.mu.Unlock()
		s.sums.give(t)
	}
}
