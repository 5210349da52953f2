package plans

import (
	"fmt"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// dealt is a number of images that three nodes own in turn.
type dealt int

func (d dealt) Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error {
	for i := range int(d) {
		a := metadata.Attr{Ino: metadata.SealedIno(1, 1, uint32(i+1)), Mode: 0o100644, Size: 1}
		a.Layout = metadata.Layout{Kind: metadata.Local, Node: metadata.NodeID(i % 3)}
		if !fn("c", uint32(i), fmt.Sprintf("%03d.jpg", i), a) {
			break
		}
	}
	return nil
}

// TestOwnersStay: ranks that ask before and after the loss of a node get the same map.
func TestOwnersStay(t *testing.T) {
	plan := &accessplan.Plan{Dataset: "photos", Kind: accessplan.Torch, Ranks: 2}
	r := nodetest.NewRegistry(nodetest.View(3))
	before, err := Owners(dealt(30), plan, r.View().Map, 0)
	if err != nil || before.Files != 30 {
		t.Fatalf("%+v, %v", before, err)
	}
	r.SetState(1, cluster.Down)
	if after, err := Owners(dealt(30), plan, r.View().Map, 0); err != nil || after.Owner != before.Owner {
		t.Errorf("after a loss the owners are %s, %v, want %s", after.Owner, err, before.Owner)
	}
}
