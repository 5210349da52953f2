package unpack

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// GziSuffix is what bgzip -r adds to the name of a file for that of its index.
const GziSuffix = ".gzi"

// The index of a file of BGZF, which bgzip -r (or -i) makes, is little endian:
//
//	count   8 bytes
//	entries 16 bytes each: where a block but the first begins, in the file and in
//	        what that unpacks to
const (
	gziHead, gziEntry = 8, 16
	gziLooks          = 8       // entries that are compared with the file
	bgzfHead          = 18      // bytes of a block's header
	bgzfLeast         = 26      // bytes of a block
	bgzfMost          = 1 << 16 // bytes that a block unpacks to
)

// IsBGZF reports whether b is the beginning of a block of BGZF: a member of gzip that
// says in its header where it ends.
func IsBGZF(b []byte) bool {
	return len(b) >= bgzfHead && bytes.HasPrefix(b, []byte("\x1f\x8b\x08\x04")) && string(b[10:16]) == "\x06\x00BC\x02\x00"
}

// LeastBGZF is what a file f of BGZF, of size bytes, unpacks to at the least as its index
// gzi says, of n bytes. Some entries of that are compared with the file; EIO is that they
// are of another one, or no entries.
func LeastBGZF(f io.ReaderAt, size int64, gzi io.ReaderAt, n int64) (int64, error) {
	x := gziFile{f: f, size: size, r: gzi}
	var head [gziHead]byte
	if n < gziHead {
		return 0, fmt.Errorf("is cut short: %w", syscall.EIO)
	}
	if err := source.ReadFull(gzi, "its count", head[:], 0); err != nil {
		return 0, err
	}
	count := binary.LittleEndian.Uint64(head[:])
	if count > math.MaxInt64/bgzfMost || int64(count) != (n-gziHead)/gziEntry || (n-gziHead)%gziEntry != 0 || int64(count) > size/bgzfLeast {
		return 0, fmt.Errorf("%d bytes of index with %d entries for a file of %d: %w", n, count, size, syscall.EIO)
	}
	looks := min(int64(count), gziLooks)
	for i := range looks {
		if err := x.check((int64(count)-1)*(i+1)/looks + 1); err != nil {
			return 0, err
		}
	}
	return x.end(int64(count))
}

// gziFile is an index and the file that it is of.
type gziFile struct {
	f    io.ReaderAt
	size int64
	r    io.ReaderAt
}

// gziAt is where a block begins.
type gziAt struct{ packed, unpacked int64 }

// entry is where the block i begins, of which the first is 0.
func (x *gziFile) entry(i int64) (gziAt, error) {
	if i == 0 {
		return gziAt{}, nil
	}
	var b [gziEntry]byte
	if err := source.ReadFull(x.r, "an entry", b[:], gziHead+(i-1)*gziEntry); err != nil {
		return gziAt{}, err
	}
	at := gziAt{int64(binary.LittleEndian.Uint64(b[:])), int64(binary.LittleEndian.Uint64(b[8:]))}
	if at.packed < i*bgzfLeast || at.packed > x.size || at.unpacked < 0 || at.unpacked > i*bgzfMost {
		return at, fmt.Errorf("entry %d cannot be of a file of %d bytes: %w", i, x.size, syscall.EIO)
	}
	return at, nil
}

// check compares the block before entry i with what is there.
func (x *gziFile) check(i int64) error {
	from, err := x.entry(i - 1)
	if err != nil {
		return err
	}
	to, err := x.entry(i)
	if err != nil {
		return err
	}
	is, err := x.block(from)
	if err == nil && is != to {
		err = fmt.Errorf("entry %d is not where a block begins: %w", i, syscall.EIO)
	}
	return err
}

// block is where the block ends that begins at at.
func (x *gziFile) block(at gziAt) (gziAt, error) {
	if x.size-at.packed < bgzfLeast {
		return at, fmt.Errorf("a block at offset %d of %d bytes: %w", at.packed, x.size, syscall.EIO)
	}
	var head [bgzfHead]byte
	if err := source.ReadFull(x.f, "a block", head[:], at.packed); err != nil {
		return at, err
	}
	end := at.packed + int64(binary.LittleEndian.Uint16(head[16:])) + 1
	if !IsBGZF(head[:]) || end-at.packed < bgzfLeast || end > x.size {
		return at, fmt.Errorf("no block at offset %d: %w", at.packed, syscall.EIO)
	}
	var tail [4]byte
	if err := source.ReadFull(x.f, "the end of a block", tail[:], end-4); err != nil {
		return at, err
	}
	n := memberSize(tail[:])
	if n > bgzfMost {
		return at, fmt.Errorf("a block of %d bytes at offset %d: %w", n, at.packed, syscall.EIO)
	}
	return gziAt{end, at.unpacked + int64(n)}, nil
}

// end is what all blocks unpack to up to the one that entry i tells of, which has data, too,
// unless the entry is of the file's end.
func (x *gziFile) end(i int64) (int64, error) {
	at, err := x.entry(i)
	if err != nil || at.packed == x.size {
		return at.unpacked, err
	}
	at, err = x.block(at)
	return at.unpacked, err
}
