package datapath_test

import (
	"math"
	"testing"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// TestStripe compares the offsets with the result of Spans for every byte.
func TestStripe(t *testing.T) {
	const chunk, size = 5, 200
	for width := 1; width <= 4; width++ {
		order := make([]metadata.NodeID, width)
		for k := range order {
			order[k] = metadata.NodeID(k)
		}
		s := datapath.Stripe{Chunk: chunk, Width: width}
		next := make([]int64, width) // by place: the object's offset of its first byte at or after pos
		for k := range next {
			next[k] = math.MaxInt64
		}
		for pos := int64(size - 1); pos >= 0; pos-- {
			span := datapath.Spans(chunk, order, pos, 1)[0]
			next[span.Node] = span.Off
			if got := s.FileOffset(int(span.Node), span.Off); got != pos {
				t.Fatalf("width %d: FileOffset(%d, %d) = %d, want %d", width, span.Node, span.Off, got, pos)
			}
			for k, want := range next {
				if got := s.ObjectOffset(k, pos); want != math.MaxInt64 && got != want {
					t.Fatalf("width %d: ObjectOffset(%d, %d) = %d, want %d", width, k, pos, got, want)
				}
			}
		}
	}
	s := datapath.Stripe{Chunk: 1 << 20, Width: 1000}
	for _, off := range []int64{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / 1000} {
		if got := s.FileOffset(999, off); got != math.MaxInt64 {
			t.Errorf("FileOffset(%d) = %d, want the end of numbers", off, got)
		}
	}
}
