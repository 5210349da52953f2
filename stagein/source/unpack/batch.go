package unpack

import (
	"context"
	"fmt"
	"io"
	"slices"
)

// batch is some whole members, frames or blocks, which are unpacked together.
type batch struct {
	off  int64     // of raw in the compressed file
	raw  []byte    // compressed
	hint int       // how many bytes come out of it, if it tells the truth
	out  []byte    // what came out
	rest io.Reader // goes on where out ends; nil is that out is all
	err  error     // why it cannot be unpacked
	done chan struct{}

	given int // bytes that were given out

	xz xzPart // of xz
}

// sizes bound batches, in bytes.
type sizes struct {
	raw  int // compressed bytes that are enough for a batch
	full int // unpacked bytes that are enough for a batch
	in   int // compressed bytes of a batch, at the most
	out  int // unpacked bytes that wait to be taken, at the most
}

// sizesFor is the sizes of batches beside a pool of so many bytes. They are these
// from 32 MiB on: what pzstd makes of 8 MiB is one frame.
func sizesFor(memory int) sizes {
	part := func(n int) int { return min(n, n*(memory>>10)/(32<<10)) }
	return sizes{raw: part(1 << 20), full: part(4 << 20), in: part(9 << 20), out: part(16 << 20)}
}

// run unpacks the batch.
func (b *batch) run(decode func(b *batch) error) {
	defer close(b.done)
	defer func() {
		if bug := recover(); bug != nil { // as in fill
			b.err = fmt.Errorf("the decoder gave up: %v", bug)
		}
	}()
	b.err = decode(b)
}

// readStep is after how many bytes who unpacks looks whether it should stop.
const readStep = 256 << 10

// read fills out from r, to its end or up to most bytes.
func (b *batch) read(ctx context.Context, r io.Reader, most int) error {
	b.out = slices.Grow(b.out[:0], min(b.hint+1, most)) // and one to see the end
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

// Read gives out what was unpacked, and unpacks what did not fit.
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
