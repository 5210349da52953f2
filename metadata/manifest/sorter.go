package manifest

import (
	"bufio"
	"bytes"
	"cmp"
	"container/heap"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
)

// sorter sorts key-value pairs externally: full buffers are sorted and written as runs, which are merged. Pairs with
// the same key keep their order; duplicates without a value are dropped.
type sorter struct {
	s     *Scratch
	arena []byte // keys and values
	pairs []pairRef
	runs  []run
	f     *os.File // the file of the runs; nil if there are none
	end   int64    // of f
}

// pairRef is a pair in the arena.
type pairRef struct {
	head uint64 // first bytes of the key
	off  uint32
	key  uint32 // bytes
	val  uint32 // bytes
}

const pairRefSize = 24

// run is a range of sorted pairs in a file. Each pair is three varints (the bytes that the key shares with the previous
// one, its further bytes, the bytes of the value), followed by those bytes.
type run struct{ off, end int64 }

func newSorter(s *Scratch) *sorter { return &sorter{s: s} }

// add copies a pair.
func (o *sorter) add(k, v []byte) error {
	n := len(k) + len(v)
	if o.size()+n+pairRefSize > o.s.memory() && len(o.pairs) > 0 {
		if err := o.flush(); err != nil {
			return err
		}
	}
	o.s.hold(n + pairRefSize)
	p := pairRef{off: uint32(len(o.arena)), key: uint32(len(k)), val: uint32(len(v))}
	var head [8]byte
	copy(head[:], k)
	p.head = binary.BigEndian.Uint64(head[:])
	o.arena = append(append(o.arena, k...), v...)
	o.pairs = append(o.pairs, p)
	return nil
}

// size returns the memory in use, in bytes.
func (o *sorter) size() int { return len(o.arena) + len(o.pairs)*pairRefSize }

func (o *sorter) key(p pairRef) []byte { return o.arena[p.off:][:p.key] }
func (o *sorter) val(p pairRef) []byte { return o.arena[p.off+p.key:][:p.val] }

func (o *sorter) sort() {
	slices.SortFunc(o.pairs, func(a, b pairRef) int {
		if a.head != b.head {
			return cmp.Compare(a.head, b.head)
		}
		return cmp.Or(bytes.Compare(o.key(a), o.key(b)), cmp.Compare(a.off, b.off))
	})
}

// flush writes the buffer as a run.
func (o *sorter) flush() error {
	o.sort()
	if o.f == nil {
		f, err := o.s.file()
		if err != nil {
			return err
		}
		o.f = f
	}
	r, err := writeRun(o.s, o.f, o.end, o.inMemory)
	if err != nil {
		return err
	}
	o.runs, o.end = append(o.runs, r), r.end
	o.s.hold(-o.size())
	o.arena, o.pairs = o.arena[:0], o.pairs[:0]
	return nil
}

func (o *sorter) inMemory(yield func(k, v []byte) error) error {
	for _, p := range o.pairs {
		if err := yield(o.key(p), o.val(p)); err != nil {
			return err
		}
	}
	return nil
}

// each calls yield with all pairs in order; they are valid until yield returns. each may be called again, but add may
// not be called afterwards.
func (o *sorter) each(yield func(k, v []byte) error) error {
	var once set
	yield = once.of(yield)
	if len(o.runs) == 0 {
		o.sort()
		return o.inMemory(yield)
	}
	if len(o.pairs) > 0 {
		if err := o.flush(); err != nil {
			return err
		}
	}
	o.arena, o.pairs = nil, nil
	for len(o.runs) > fanIn {
		if err := o.mergeSome(); err != nil {
			return err
		}
	}
	return merge(o.s, o.f, o.runs, yield)
}

// mergeSome merges runs into fewer, in another file.
func (o *sorter) mergeSome() error {
	f, err := o.s.file()
	if err != nil {
		return err
	}
	var runs []run
	end := int64(0)
	for some := range slices.Chunk(o.runs, fanIn) {
		r, err := writeRun(o.s, f, end, func(yield func(k, v []byte) error) error {
			return merge(o.s, o.f, some, yield)
		})
		if err != nil {
			_ = f.Close() // the first error is returned
			return err
		}
		runs, end = append(runs, r), r.end
	}
	old := o.f
	o.f, o.runs, o.end = f, runs, end
	return old.Close()
}

// close releases memory and file.
func (o *sorter) close() {
	o.s.hold(-o.size())
	o.arena, o.pairs, o.runs = nil, nil, nil
	if o.f != nil {
		_ = o.f.Close() // a temporary file
		o.f = nil
	}
}

// set drops pairs without a value that repeat the previous key.
type set struct {
	last []byte
	some bool
}

func (s *set) of(yield func(k, v []byte) error) func(k, v []byte) error {
	return func(k, v []byte) error {
		if s.some && len(v) == 0 && bytes.Equal(k, s.last) {
			return nil
		}
		s.some, s.last = len(v) == 0, append(s.last[:0], k...)
		return yield(k, v)
	}
}

// writeRun writes what src yields as a run at off of f.
func writeRun(s *Scratch, f *os.File, off int64, src func(yield func(k, v []byte) error) error) (run, error) {
	s.hold(s.block())
	defer s.hold(-s.block())
	w := bufio.NewWriterSize(io.NewOffsetWriter(f, off), s.block())
	r := run{off, off}
	var before, head []byte
	var once set
	err := src(once.of(func(k, v []byte) error {
		shared := 0
		for shared < len(before) && shared < len(k) && before[shared] == k[shared] {
			shared++
		}
		head = binary.AppendUvarint(head[:0], uint64(shared))
		head = binary.AppendUvarint(head, uint64(len(k)-shared))
		head = binary.AppendUvarint(head, uint64(len(v)))
		before = append(before[:shared], k[shared:]...)
		r.end += int64(len(head) + len(k) - shared + len(v))
		for _, b := range [][]byte{head, k[shared:], v} {
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
		return nil
	}))
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return run{}, fmt.Errorf("a run of what is sorted: %w", err)
	}
	return r, nil
}

// runReader reads a run.
type runReader struct {
	n    int // number of the run; equal keys are returned in the order of runs
	r    *bufio.Reader
	s    *Scratch
	k, v []byte
}

// next reads the next pair; io.EOF after the last.
func (r *runReader) next() error {
	shared, err := binary.ReadUvarint(r.r)
	if err != nil {
		return err
	}
	own, err := binary.ReadUvarint(r.r)
	if err != nil {
		return noEOF(err)
	}
	n, err := binary.ReadUvarint(r.r)
	if err != nil {
		return noEOF(err)
	}
	if shared > uint64(len(r.k)) || own > maxPair || n > maxPair {
		return syscall.EIO
	}
	r.s.hold(-len(r.k) - len(r.v))
	r.k = slices.Grow(r.k[:shared], int(own))[:shared+own]
	r.v = slices.Grow(r.v[:0], int(n))[:n]
	r.s.hold(len(r.k) + len(r.v))
	if _, err = io.ReadFull(r.r, r.k[shared:]); err == nil {
		_, err = io.ReadFull(r.r, r.v)
	}
	return noEOF(err)
}

// maxPair limits the size of keys and values, in bytes.
const maxPair = 1 << 20

// runHeap is a heap with the run of the smallest key first.
type runHeap []*runReader

func (h runHeap) Len() int { return len(h) }
func (h runHeap) Less(i, j int) bool {
	return cmp.Or(bytes.Compare(h[i].k, h[j].k), cmp.Compare(h[i].n, h[j].n)) < 0
}
func (h runHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(any)     { panic("a merge has all its runs from the beginning") }
func (h *runHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// merge calls yield with the pairs of runs in order.
func merge(s *Scratch, f *os.File, runs []run, yield func(k, v []byte) error) error {
	s.hold(len(runs) * s.block())
	defer s.hold(-len(runs) * s.block())
	all := make([]*runReader, len(runs))
	var h runHeap
	for i, r := range runs {
		all[i] = &runReader{n: i, s: s, r: bufio.NewReaderSize(io.NewSectionReader(f, r.off, r.end-r.off), s.block())}
		if err := all[i].next(); err != nil {
			return fmt.Errorf("run %d of what is sorted: %w", i, noEOF(err))
		}
		h = append(h, all[i])
	}
	defer func() {
		for _, r := range all {
			s.hold(-len(r.k) - len(r.v))
		}
	}()
	heap.Init(&h)
	for len(h) > 0 {
		r := h[0]
		if err := yield(r.k, r.v); err != nil {
			return err
		}
		switch err := r.next(); {
		case err == io.EOF:
			heap.Pop(&h)
		case err != nil:
			return fmt.Errorf("run %d of what is sorted: %w", r.n, err)
		default:
			heap.Fix(&h, 0)
		}
	}
	return nil
}
