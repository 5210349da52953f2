package datapath

import (
	"context"
	"math"

	"github.com/bivouacfs/bivouac/metadata"
)

// Extent is the range [From, To) of an object or a file.
type Extent struct {
	From, To int64
}

// NoData is the Extent after the last data.
var NoData = Extent{math.MaxInt64, math.MaxInt64}

// Shaper allocates and punches ranges of objects.
type Shaper interface {
	// Allocate reserves space for the n bytes at off, so that writes there cannot fail with ENOSPC; or fails with
	// ENOSPC itself. It keeps existing data and extends a shorter object to off+n bytes. EOPNOTSUPP if the disk does
	// not support it.
	Allocate(ctx context.Context, ino metadata.Ino, off, n int64) error
	// Punch zeros the n bytes at off and frees their space; it does not change the size of the object.
	Punch(ctx context.Context, ino metadata.Ino, off, n int64) error
	// Data returns the first range of data that ends after off, and starts at off or later; NoData if there is none.
	// Allocated but unwritten space is not data.
	Data(ctx context.Context, ino metadata.Ino, off int64) (Extent, error)
	// Allocated returns the space that the object takes, in bytes.
	Allocated(ctx context.Context, ino metadata.Ino) (int64, error)
}

// Stripe maps the bytes of a file to the objects of its nodes.
type Stripe struct {
	Chunk int64
	Width int // nodes; their positions are 0 to Width-1
}

// ObjectOffset returns the first offset in the object at position k whose byte is at pos or later in the file.
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

// FileOffset returns the offset in the file of the byte at off of the object at position k;
// MaxInt64 if it overflows.
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
