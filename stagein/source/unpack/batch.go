package unpack

import (
	"context"
	"fmt"
	"io"
	"slices"
)

// batch is one or more whole members, frames or blocks that are decoded together.
type batch struct {
	off  int64     // offset of raw in the compressed file
	raw  []byte    // compressed
	hint int       // unpacked size, as far as the format states it
	out  []byte    // decoded bytes
	rest io.Reader // continues where out ends; nil if out is everything
	err  error     // why decoding failed
	done chan struct{}

	given int // bytes that were returned

	xz xzPart // for xz
}

// sizes are the limits of a batch, in bytes.
type sizes struct {
	raw  int // compressed bytes from which on a batch is large enough
	full int // unpacked bytes from which on a batch is large enough
	in   int // maximum of compressed bytes
	out  int // maximum of unpacked bytes that are buffered
}

// sizesFor scales the limits to the memory of a pool. They are constant from 32 MiB on; a frame of pzstd has 8 MiB.
func sizesFor(memory int) sizes {
	part := func(n int) int { return min(n, n*(memory>>10)/(32<<10)) }
	return sizes{raw: part(1 << 20), full: part(4 << 20), in: part(9 << 20), out: part(16 << 20)}
}

// run decodes the batch.
func (b *batch) run(decode func(b *batch) error) {
	defer close(b.done)
	defer func() {
		if bug := recover(); bug != nil { // as in fill
			b.err = fmt.Errorf("the decoder panicked: %v", bug)
		}
	}()
	b.err = decode(b)
}

// readStep is how many bytes are decoded between checks for cancellation.
const readStep = 256 << 10

// read fills out from r, until its end or max bytes.
func (b *batch) read(ctx context.Context, r io.Reader, most int) error {
	b.out = slices.Grow(b.out[:0], min(b.hint+1, most)) // one more to detect the end
	for len(b.out) < most {
		if err := ctx.Err(); err != nil {
			return err
		}
		b.out = slices.Grow(b.out, 1)
		n, err := fill(b.out[len(b.out):min(cap(b.out), most, len(b.out)+readStep)], r)
		b.out = b.out[:len(b.out)+n]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	b.rest = r
	return nil
}

// Read returns what was decoded, and then decodes the rest.
func (b *batch) Read(p []byte) (n int, err error) {
	switch {
	case b.given < len(b.out):
		n = copy(p, b.out[b.given:])
	case b.rest == nil:
		return 0, io.EOF
	default:
		n, err = b.rest.Read(p)
	}
	b.given += n
	return n, err
}
