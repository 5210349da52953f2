package datapath

import (
	"context"
	"math"

	"github.com/bivouacfs/bivouac/metadata"
)

// Extent is the bytes of an object, or of a file, from From up to To.
type Extent struct {
	From, To int64
}

// NoData is the Extent behind the last byte of data.
var NoData = Extent{math.MaxInt64, math.MaxInt64}

// Shaper tells where objects have space on the disk, and changes that.
type Shaper interface {
	// Allocate sees to it that writes to the n bytes at off cannot fail for
	// want of space, or is ENOSPC itself. What is there stays; a shorter
	// object becomes off+n bytes long. EOPNOTSUPP if the disk cannot.
	Allocate(ctx context.Context, ino metadata.Ino, off, n int64) error
	// Punch makes the n bytes at off zeros and gives their space back; the
	// object's length stays. It is no error if there is no object.
	Punch(ctx context.Context, ino metadata.Ino, off, n int64) error
	// Data returns the first stretch of data that ends behind off, which
	// begins at off or later; NoData if there is none. What was allocated and
	// never written is no data.
	Data(ctx context.Context, ino metadata.Ino, off int64) (Extent, error)
	// Allocated is the space that the object takes, in bytes.
	Allocated(ctx context.Context, ino metadata.Ino) (int64, error)
}

// Stripe is how the bytes of a file lie in the objects of its nodes.
type Stripe struct {
	Chunk int64
	Width int // nodes; their places are 0 to Width-1
}

// ObjectOffset is the first offset in the object at place k that has a byte of
// the file at or behind pos.
func (s Stripe) ObjectOffset(k int, pos int64) int64 {
	if s.Width <= 1 {
		return pos
	}
	w := int64(s.Width)
	i, in := pos/s.Chunk, pos%s.Chunk
	row := i / w * s.Chunk
	switch at := i % w; {
	case int64(k) == at:
		return row + in
	case int64(k) > at:
		return row
	}
	return row + s.Chunk
}

// FileOffset is where in the file the byte at off of the object at place k is,
// or the greatest number, if no file goes so far.
func (s Stripe) FileOffset(k int, off int64) int64 {
	if s.Width <= 1 {
		return off
	}
	row, w := off/s.Chunk, int64(s.Width)
	if row >= math.MaxInt64/s.Chunk/w-1 {
		return math.MaxInt64
	}
	i := row*w + int64(k)
	return i*s.Chunk + off%s.Chunk
}
