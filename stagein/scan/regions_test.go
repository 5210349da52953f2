package scan

import (
	"testing"

	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

func TestRegions(t *testing.T) {
	for _, n := range []int{1, 2, 5, 7, 300} {
		nodes := stageintest.ClusterMap(n).Up()
		for _, size := range []int64{512, 513, 1024, 99_999, 1 << 20, 10<<20 + 7, 1 << 40} {
			off := int64(512)
			parts := regions(size, 1<<20, nodes)
			for i, p := range parts {
				if p.Off != off || p.End < p.Off || int(p.Index) != i || p.Off%512 != 0 {
					t.Fatalf("regions(%d, %d nodes)[%d] = %+v, want from %d", size, n, i, p, off)
				}
				off = p.End
			}
			if off != size {
				t.Errorf("regions(%d, %d nodes) end at %d", size, n, off)
			}
		}
	}
}
