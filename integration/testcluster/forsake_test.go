package testcluster

import (
	"bytes"
	"testing"

	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestPackedSpillStripesAreLost: a file that lies in stripes over all nodes stays in a compressed tar
// when one of them is lost while that is read, and the others have no room for its stripes; they give
// the room of theirs back.
func TestPackedSpillStripesAreLost(t *testing.T) {
	t.Parallel()
	const capacity = 26 << 20
	small := int64(0)
	p, reader := heldUp(t, capacity, func(p *pass) (string, int64) {
		small = bytesOf(p.m)
		p.m["a/large"] = bytes.Repeat([]byte("0123456789abcdef"), 65<<20/16)
		return p.packed(t, packMembers)
	}, 1)
	i := 0
	if reader == i {
		i = 1
	}
	Eventually(t, "the node has stripes", func() bool { took, err := onDisk(p.Nodes[i]); return err == nil && took > 16<<20 })
	p.Cut(i)
	p.lost(t, i)
	p.open()
	if err := <-p.done; err != nil {
		t.Fatal(err)
	}
	ds := p.Dataset(t, leads, "set")
	if ds.Phase != cluster.Sealed || ds.Files != int64(len(p.m)) || ds.Bytes != bytesOf(p.m) {
		t.Fatalf("dataset: %+v", ds)
	}
	for _, k := range others(i) {
		n := p.Nodes[k]
		Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
		wantFourth(t, n, ds.ID, p.m)
		wantAll(t, n, ds.ID, map[string][]byte{"a/large": p.m["a/large"]})
		Eventually(t, "the stripes are gone", func() bool { took, err := onDisk(n); return err == nil && took < small*2/3 })
	}
}
