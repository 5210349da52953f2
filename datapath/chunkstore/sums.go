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
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/cpu"

	"github.com/bivouacfs/bivouac/metadata"
)

// block is the unit of checksums: the smallest read of the kernel, and an allocation unit.
const block = pageSize

// hash is the checksum function: XXH3 where it is vectorized, at twice the speed of the CRC-32C instruction. Either
// misses one error in 2^32.
var hash = chooseHash(cpu.X86.HasAVX2)

func chooseHash(vectors bool) func(p []byte) uint32 {
	if vectors {
		return func(p []byte) uint32 { return uint32(xxh3.Hash(p)) }
	}
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	return func(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }
}

// sumOf returns the checksum of a block. Bytes after the end of an object count as zeros, so that an object can grow
// without a new checksum. 0 means no checksum.
func sumOf(b []byte) uint32 { return nonzero(hash(b)) }

func nonzero(c uint32) uint32 {
	if c == 0 {
		return 1
	}
	return c
}

// sums holds checksums of the most recently used objects in memory, at most limit bytes. A block without a checksum is
// not compared.
type sums struct {
	limit int64
	bad   atomic.Int64 // blocks that were found corrupt

	mu      sync.Mutex
	size    int64                                     // under mu: of all objects, in bytes
	objects *simplelru.LRU[metadata.Ino, *objectSums] // under mu: those with checksums, in second-chance (clock) order
}

// objectSums holds the checksums of one object. An open object refers to its own, which stays the same while it has
// checksums.
type objectSums struct {
	ino  metadata.Ino
	size int64        // under sums.mu: its part of sums.size
	cost atomic.Int64 // its memory now, for settle; changed under mu
	used atomic.Bool  // since evict last considered it

	// mu is held while bytes and then their checksums change, which lasts as long as a drive hangs. So no goroutine
	// waits for mu while it holds sums.mu.
	mu    sync.RWMutex
	bytes int64              // under mu: memory of parts
	parts map[int64][]uint32 // under mu: partBlocks blocks each; blocks missing at the end have no checksum
	bad   map[int64]struct{} // under mu: blocks that were found corrupt
}

const (
	partBlocks = 1024
	sumsCost   = 512 // approximate overhead of an objectSums, in bytes
)

func newSums(limit int64) *sums {
	objects, _ := simplelru.NewLRU[metadata.Ino, *objectSums](math.MaxInt, nil) // evict bounds it
	return &sums{limit: limit, objects: objects}
}

// of returns the checksums of ino, for an object that is being opened; nil if it has none. An inode has at most one
// open object.
func (t *sums) of(ino metadata.Ino) *objectSums {
	if t == nil || ino.Sealed() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if o, ok := t.objects.Peek(ino); ok {
		return o
	}
	return &objectSums{ino: ino, parts: map[int64][]uint32{}}
}

// settle counts the memory of o after it changed, and evicts the checksums of other objects if there are too many.
func (t *sums) settle(o *objectSums) {
	t.mu.Lock()
	defer t.mu.Unlock()
	size := o.cost.Load()
	t.size += size - o.size
	o.size = size
	switch {
	case size == 0:
		t.objects.Remove(o.ino)
	case !t.objects.Contains(o.ino):
		t.objects.Add(o.ino, o)
	}
	for n := 2 * t.objects.Len(); t.size > t.limit && n > 0; n-- {
		t.evict()
	}
}

// evict drops the checksums of the next object, unless it was used since the last time or is in use: then it goes to
// the end of the queue. It is called with mu held.
func (t *sums) evict() {
	ino, o, _ := t.objects.RemoveOldest()
	if o.used.Swap(false) || !o.mu.TryLock() {
		t.objects.Add(ino, o)
		return
	}
	clear(o.parts)
	o.bytes = 0
	o.count()
	o.mu.Unlock()
	t.size -= o.size
	o.size = 0
}

// count records the memory of o, for settle; o.mu is held.
func (o *objectSums) count() {
	if len(o.parts) == 0 {
		o.cost.Store(0)
		return
	}
	o.cost.Store(sumsCost + o.bytes)
}

// use records a use, for evict.
func (o *objectSums) use() {
	if !o.used.Load() {
		o.used.Store(true)
	}
}

// at returns the checksum of a block; o.mu is held.
func (o *objectSums) at(i int64) uint32 {
	if p := o.parts[i/partBlocks]; i%partBlocks < int64(len(p)) {
		return p[i%partBlocks]
	}
	return 0
}

// set sets the checksum of a block; o.mu is held.
func (o *objectSums) set(i int64, sum uint32) {
	if p := o.parts[i/partBlocks]; sum != 0 || i%partBlocks < int64(len(p)) {
		o.part(i/partBlocks, i%partBlocks+1)[i%partBlocks] = sum
	}
}

// put sets the checksums of the blocks from i on, skipping those that are 0; o.mu is held.
func (o *objectSums) put(i int64, sums []uint32) {
	for len(sums) > 0 {
		at := i % partBlocks
		n := min(int64(len(sums)), partBlocks-at)
		p := o.part(i/partBlocks, at+n)
		for k, sum := range sums[:n] {
			if sum != 0 {
				p[at+int64(k)] = sum
			}
		}
		if len(o.bad) > 0 {
			for k, sum := range sums[:n] {
				if sum != 0 {
					delete(o.bad, i+int64(k))
				}
			}
		}
		i, sums = i+n, sums[n:]
	}
}

// part returns part k, extended to n blocks; o.mu is held.
func (o *objectSums) part(k, n int64) []uint32 {
	p := o.parts[k]
	if n > int64(len(p)) {
		was := cap(p)
		p = append(p, make([]uint32, n-int64(len(p)))...)
		o.bytes += 4 * int64(cap(p)-was)
		o.parts[k] = p
	}
	return p
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

// blocks pools buffers.
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

// readObject reads from o and verifies the data against the checksums.
func (s *Store) readObject(o *object, p []byte, off int64) (int, error) {
	n, err := o.file.ReadAt(p, off)
	if n == 0 || o.sums == nil || err != nil && !errors.Is(err, io.EOF) {
		return n, err
	}
	t := o.sums
	t.use()
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

// check compares p[:n], read at off, with the checksums, and returns the first block that differs, or -1. It reads the
// rest of a block that is only partly in p; t.mu is held.
func (t *objectSums) check(f File, p []byte, n int, off int64) (bad int64, err error) {
	end := off + int64(n)
	var part []uint32 // contains block i
	for i := off / block; i*block < end; i++ {
		at := i % partBlocks
		if at == 0 || i == off/block {
			part = t.parts[i/partBlocks]
		}
		if at >= int64(len(part)) || part[at] == 0 {
			continue
		}
		from, to := i*block-off, (i+1)*block-off
		var got uint32
		if from >= 0 && to <= int64(n) {
			got = sumOf(p[from:to])
		} else if from >= 0 && n < len(p) { // the end of the object
			got = sumOfTail(p[from:n])
		} else if got, err = sumAround(f, p[max(from, 0):min(to, int64(n))], i, max(-from, 0)); err != nil {
			return -1, err
		}
		if got != part[at] {
			return i, nil
		}
	}
	return -1, nil
}

// sumOfTail returns the checksum of the last block of an object, of which p is the bytes.
func sumOfTail(p []byte) uint32 {
	b := blocks.Get().(*[block]byte)
	defer blocks.Put(b)
	clear(b[copy(b[:], p):])
	return sumOf(b[:])
}

// sumAround reads block i for its checksum, and fills p with its bytes from at on, so that p holds exactly the bytes
// that were summed.
func sumAround(f File, p []byte, i, at int64) (uint32, error) {
	b := blocks.Get().(*[block]byte)
	defer blocks.Put(b)
	if err := readBlock(f, b, i); err != nil {
		return 0, err
	}
	copy(p, b[at:])
	return sumOf(b[:]), nil
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

// Corrupt returns the number of blocks that were found corrupt.
func (s *Store) Corrupt() int64 {
	if s.sums == nil {
		return 0
	}
	return s.sums.bad.Load()
}

// change runs fn, which replaces the n bytes at off by p, or by zeros if p is nil, and updates
// the checksums.
func (s *Store) change(o *object, p []byte, off, n int64, fn func() error) error {
	if o.sums == nil || n == 0 {
		return fn()
	}
	var room [1<<20/block + 1]uint32
	fresh := sumsOf(room[:0], p, off)
	first, last := off/block, (off+n-1)/block
	return s.update(o.sums, func(t *objectSums) error {
		var edges [2]uint32 // of the first and the last block, if they change only partly
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
			t.clear(first, last+1) // it is unknown which bytes changed
			return err
		}
		if p == nil {
			t.clear(first, last+1)
		}
		t.put(first, fresh)
		for k, i := range [2]int64{first, last} {
			if edges[k] != 0 {
				t.set(i, edges[k])
			}
		}
		return nil
	})
}

// update runs fn with the checksums of an object, while no other call changes or compares them.
func (s *Store) update(t *objectSums, fn func(*objectSums) error) error {
	t.use()
	t.mu.Lock()
	was := t.bytes
	err := fn(t)
	grown := t.bytes != was
	t.count()
	t.mu.Unlock()
	if grown {
		s.sums.settle(t)
	}
	return err
}

// sumsOf appends the checksums of the blocks that p, written at off, covers; 0 for a block covered only partly.
func sumsOf(sums []uint32, p []byte, off int64) []uint32 {
	for from := off/block*block - off; from < int64(len(p)); from += block {
		if from < 0 || from+block > int64(len(p)) {
			sums = append(sums, 0)
		} else {
			sums = append(sums, sumOf(p[from:][:block]))
		}
	}
	return sums
}

// changed returns the checksum of block i after its n bytes at at are replaced by p[from:], or by zeros if p is nil. A
// corrupt block keeps a wrong checksum. t.mu is held.
func (s *Store) changed(t *objectSums, f File, i int64, p []byte, from, at, n int64) (uint32, error) {
	b := blocks.Get().(*[block]byte)
	defer blocks.Put(b)
	if err := readBlock(f, b, i); err != nil {
		return 0, err
	}
	want := t.at(i)
	good := want == 0 || sumOf(b[:]) == want
	if p == nil {
		clear(b[at : at+n])
	} else {
		copy(b[at:at+n], p[from:])
	}
	sum := sumOf(b[:])
	if !good {
		s.corrupt(t, i)
		sum = nonzero(^sum)
	}
	return sum, nil
}

// cut runs fn, which truncates o to size bytes. No other call uses o.
func (s *Store) cut(o *object, size int64, fn func() error) error {
	if o.sums == nil {
		return fn()
	}
	return s.update(o.sums, func(t *objectSums) error {
		i, at := size/block, size%block
		var sum uint32
		if at > 0 {
			var err error
			if sum, err = s.changed(t, o.file, i, nil, 0, at, block-at); err != nil {
				return err
			}
		}
		err := fn()
		t.clear(i, math.MaxInt64)
		if err == nil {
			t.set(i, sum)
		}
		return err
	})
}

// forgetSums drops the checksums of o, which is about to be removed. No other call uses o.
func (s *Store) forgetSums(o *object) {
	if o.sums != nil {
		_ = s.update(o.sums, func(t *objectSums) error {
			t.clear(0, math.MaxInt64)
			clear(t.bad)
			return nil
		}) // cannot fail
	}
}
