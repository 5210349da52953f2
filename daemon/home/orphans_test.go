package home

import (
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

func TestInoSet(t *testing.T) {
	s, in := make(inoSet), make(map[uint64]bool)
	for _, c := range []uint64{0, 63, 64, 1024, 4095, 4096, 1 << 20, metadata.MaxCounter} {
		s.add(metadata.LiveIno(3, c))
		in[c] = true
	}
	for c := range in {
		for _, d := range []uint64{c - 1, c, c + 1, c ^ 1<<12} {
			if d > metadata.MaxCounter {
				continue
			}
			if got := s.has(metadata.LiveIno(3, d)); got != in[d] {
				t.Errorf("has(%d) = %v, want %v", d, got, in[d])
			}
		}
	}
}
