package ingest

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

func TestBoundaryIsChecked(t *testing.T) {
	p := stagein.Part{Index: 2, Off: 4096, End: 8192}
	for _, s := range []Boundary{
		{At: -512}, {At: 4096 + 512}, {At: 3584}, {At: 4095, Carry: []byte{0}},
		{Member: &CutMember{Off: 5000, Size: 10}}, {Member: &CutMember{Off: 512, Size: 100}},
		{Member: &CutMember{Off: 512, Size: 1 << 40}}, {Member: &CutMember{Off: 512, Size: -1}},
		{Member: &CutMember{Off: 512, Size: 6000}, Ended: true},
	} {
		if err := s.check(p, 10_000); err == nil {
			t.Errorf("seam %+v was taken", s)
		}
	}
	for _, s := range []Boundary{
		{At: 4096}, {At: 3584, Carry: make([]byte, 512)}, {At: 100 * 0, Ended: true}, {Member: &CutMember{Off: 512, Size: 6000}},
	} {
		if err := s.check(p, 10_000); err != nil {
			t.Errorf("seam %+v: %v", s, err)
		}
	}
}

func TestBoundaryOfSparseIsChecked(t *testing.T) {
	m, err := source.NewSparse([]int64{0, 5000, 1 << 30, 1000}, 1<<40, 6000)
	if err != nil {
		t.Fatal(err)
	}
	p := stagein.Part{Index: 2, Off: 4096, End: 8192}
	good := Boundary{Member: &CutMember{Off: 512, Size: 1 << 40, Sparse: m}}
	if err := good.check(p, 10_000); err != nil {
		t.Error(err)
	}
	lie := *m
	lie.Stored++
	for _, bad := range []CutMember{{Off: 512, Size: 7, Sparse: m}, {Off: 512, Size: 1 << 40, Sparse: &lie}, {Off: 512, Size: -1, Sparse: &source.Sparse{Size: -1}}} {
		s := Boundary{Member: &bad}
		if err := s.check(p, 10_000); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

func TestLastBytes(t *testing.T) {
	striped := metadata.Layout{Kind: metadata.Striped, ChunkSize: 10}
	for _, c := range []struct {
		l     metadata.Layout
		width int
		size  int64
		want  string
	}{
		{metadata.Layout{Kind: metadata.Local}, 1, 25, "[24]"}, {striped, 3, 25, "[24 19 9]"}, {striped, 3, 5, "[4]"},
		{striped, 2, 40, "[39 29]"}, {striped, 1, 40, "[39]"},
	} {
		if got := fmt.Sprint(lastBytes(c.l, c.width, c.size)); got != c.want {
			t.Errorf("lastBytes(%+v, %d, %d) = %s, want %s", c.l, c.width, c.size, got, c.want)
		}
	}
}

// TestShareWithoutInodes: a try whose inode numbers would overflow is refused.
func TestShareWithoutInodes(t *testing.T) {
	q := &stagein.Plan{Parts: []stagein.Part{{Index: 0, Node: 4}, {Index: 1, Node: 5}, {Index: 2, Node: 6}}}
	cfg := Config{
		Plan: q, Part: stagein.Part{Try: metadata.DirPart}, FS: source.OS{}, Target: &stageintest.MemTarget{}, Records: io.Discard, Scratch: &manifest.Scratch{},
	}
	if _, err := New(cfg); !errors.Is(err, syscall.EOVERFLOW) {
		t.Errorf("a share of which no inode could be numbered: %v", err)
	}
}
