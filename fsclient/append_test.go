package fsclient_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestPlaceOfLateAppendIsNotReused: of an append to two chunks, one write finds no space and the other may
// still arrive. No later append gets that place.
func TestPlaceOfLateAppendIsNotReused(t *testing.T) {
	_, ms, cs := metered(t, 2)
	f, a, err := cs[0].CreateOpen(ctx, metadata.RootIno, "log", metadata.New{
		Mode: syscall.S_IFREG | 0o644, Layout: metadata.Layout{Kind: metadata.Striped, Width: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	before := int(a.Layout.Chunk()) - 100
	must(t, before)(f.WriteAt(ctx, bytes.Repeat([]byte{'-'}, before), 0))
	for _, errs := range [][2]error{{syscall.ENOSPC, nil}, {syscall.ETIMEDOUT, syscall.ENOSPC}} {
		if err := f.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		for i, node := range f.Order() {
			ms[node].set(errs[i], nil)
		}
		if n, err := f.Append(ctx, bytes.Repeat([]byte{'x'}, 200)); n != 0 || err == nil {
			t.Errorf("append = %d, %v, want an error", n, err)
		}
		for _, m := range ms {
			m.set(nil, nil)
		}
		g, err := cs[1].Open(ctx, f.Ino())
		if err != nil {
			t.Fatal(err)
		}
		must(t, 50)(g.Append(ctx, bytes.Repeat([]byte{'B'}, 50)))
		if err := errors.Join(f.Flush(ctx), g.Close(ctx)); err != nil {
			t.Fatal(err)
		}
		if a, err := cs[1].Getattr(ctx, f.Ino()); err != nil || a.Size < int64(before)+200+50 {
			t.Errorf("with %v the next append ends at %d, %v, in the place of the one that may arrive, which begins at %d", errs, a.Size, err, before)
		}
		if _, err := cs[1].Truncate(ctx, f.Ino(), int64(before)); err != nil {
			t.Fatal(err)
		}
	}
	closed(t, f)
}
