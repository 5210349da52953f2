package stripe

import (
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestDatasetReads: a read from the beginning of a file is a sample of its place's speed; a read that no reader waits
// for is not.
func TestDatasetReads(t *testing.T) {
	d, n, _ := newData(t)
	n.lost, n.standIn = 1, 0
	size := chunk + 10
	for i := range n.stores {
		n.stores[i].objects[metadata.SealedIno(1, 0, 9)] = pattern(size)
	}
	a := attr(metadata.SealedIno(1, 0, 9), size)
	a.Layout.Kind = metadata.Local
	read := func(owner metadata.NodeID, off, n int, o ReadOpts) {
		t.Helper()
		if _, err := d.Read(ctx, a, []metadata.NodeID{owner}, make([]byte, n), int64(off), o); err != nil {
			t.Fatal(err)
		}
	}
	read(0, 0, size, ReadOpts{})
	read(0, 5, 7, ReadOpts{})
	read(1, 0, 3, ReadOpts{}) // as a stand-in
	read(2, 0, size, ReadOpts{})
	_, _ = d.Read(ctx, a, []metadata.NodeID{0}, make([]byte, 5), 0, ReadOpts{NoWait: true})
	a.Layout.Kind = metadata.Overflow
	read(2, 0, 4, ReadOpts{})
	a.Ino = metadata.SealedIno(2, 0, 9)
	n.stores[0].objects[a.Ino] = pattern(size)
	read(0, 1, 4, ReadOpts{})

	got := d.Datasets()
	want := DatasetReads{
		Samples: [places]int64{Own: 2, Remote: 1, Source: 1},
		Bytes:   [places]int64{Own: int64(size) + 7 + 3, Remote: int64(size), Source: 4},
	}
	if got[1] != want {
		t.Errorf("dataset 1: %+v, want %+v", got[1], want)
	}
	if want := (DatasetReads{Bytes: [places]int64{Source: 4}}); got[2] != want || len(got) != 2 {
		t.Errorf("%d datasets, 2: %+v, want %+v", len(got), got[2], want)
	}
}

func TestPlaced(t *testing.T) {
	d, _, _ := newData(t)
	for _, tt := range []struct {
		kind       metadata.LayoutKind
		id, holder metadata.NodeID
		want       Place
	}{
		{metadata.Local, 0, 0, Own}, {metadata.Local, 0, 2, Replica}, {metadata.Local, 2, 0, Remote}, {metadata.Local, 2, 2, Remote},
		{metadata.Striped, 0, 0, Own}, {metadata.Overflow, 0, 0, Source}, {metadata.Overflow, 2, 2, Source},
	} {
		s := sealedRead{d: d, a: &metadata.Attr{Layout: metadata.Layout{Kind: tt.kind}}}
		if got := s.placed(tt.id, tt.holder); got != tt.want {
			t.Errorf("layout %v, node %d for owner %d: place %d, want %d", tt.kind, tt.id, tt.holder, got, tt.want)
		}
	}
}
