package stagein

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestForsake: what lay on a lost node, all of it or a part, stays in the source if it can be come to there,
// with holes or not; nothing else changes.
func TestForsake(t *testing.T) {
	o := &Origins{Sources: []Origin{{Kind: source.Tar}, {Kind: source.TarZstd, Places: []byte{0, 0}}, {Kind: source.TarGzip}}}
	on := func(id metadata.NodeID) metadata.Layout { return metadata.Layout{Kind: metadata.Local, Node: id} }
	m, wideAt := stageintest.ClusterMap(2), 0
	wide := metadata.Layout{Kind: metadata.Striped, ChunkSize: stripeChunk, Epoch: m.Epoch}
	cases := []struct {
		from manifest.Origin
		l    metadata.Layout
		goes bool
	}{
		{manifest.Origin{Source: 0, Off: 512}, on(1), true}, {manifest.Origin{Source: 1, Off: 512}, on(1), true},
		{manifest.Origin{Source: 1, Off: 9000, Head: 512, Sparse: true}, on(1), true}, {manifest.Origin{Source: 2, Off: 512}, on(1), false},
		{manifest.Origin{Source: 1, Off: 7000}, on(2), false}, {manifest.Origin{Source: 1, Off: 8000}, wide, true},
		{manifest.Origin{Source: 9, Off: 512}, on(1), false},
	}
	var from, to bytes.Buffer
	w := manifest.NewWriter(&from)
	for i, c := range cases {
		a := metadata.Attr{Ino: metadata.SealedIno(3, 0, uint32(i+1)), Mode: source.TypeRegular | 0o644, Nlink: 1, Size: 5000, Layout: c.l}
		if c.l == wide {
			wideAt, a.Size = i, 2*stripeChunk // is on all nodes of two
		}
		stageintest.NoError(t, w.Add(manifest.Record{Path: string(rune('a' + i)), From: c.from, Attr: a}))
	}
	stageintest.NoError(t, w.Close())
	f, err := o.Forsake(func(id metadata.NodeID) bool { return id == 1 }, m.Order, &from, &to)
	if last := []metadata.Ino{metadata.SealedIno(3, 0, uint32(wideAt+1))}; err != nil || f.Bytes != 3*pages(5000)+stripeChunk || !slices.Equal(f.Wide, last) {
		t.Fatalf("%+v, %v, want %d bytes and %v", f, err, 3*pages(5000)+stripeChunk, last)
	}
	r := manifest.NewReader(&to)
	for i, c := range cases {
		rec, err := r.Next()
		stageintest.NoError(t, err)
		want := c.l
		if c.goes {
			want = metadata.Layout{Kind: metadata.Spilled, ChunkSize: c.l.ChunkSize}
		}
		if rec.Attr.Layout != want {
			t.Errorf("record %d has the layout %+v, want %+v", i, rec.Attr.Layout, want)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("after the last record: %v", err)
	}
	for _, c := range []struct {
		bytes int64
		free  []int64
		want  bool
	}{{1 << 20, []int64{2 << 20, 2 << 20}, true}, {1 << 20, []int64{2 << 20, 700 << 10}, false}, {1 << 20, nil, false}} {
		if got := HasRoom(c.bytes, c.free); got != c.want {
			t.Errorf("HasRoom(%d, %v) = %v, want %v", c.bytes, c.free, got, c.want)
		}
	}
}
