package dataset

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// disk records the calls that it receives.
type disk struct {
	started, awaited []metadata.Ino
	fails            error
}

func (d *disk) StartWriteBack(_ context.Context, ino metadata.Ino, _, _ int64) error {
	d.started = append(d.started, ino)
	return d.fails
}

func (d *disk) AwaitWriteBack(_ context.Context, ino metadata.Ino, _, _ int64) error {
	d.awaited = append(d.awaited, ino)
	return d.fails
}

// TestDirty: the oldest writes are written back first, a small amount stays unwritten, and the bytes not known to be on
// disk never exceed the bound.
func TestDirty(t *testing.T) {
	q, to := dirty{lazy: 30, most: 70}, &disk{}
	var inos []metadata.Ino
	for i := range metadata.Ino(20) {
		inos = append(inos, i)
		if err := q.wrote(t.Context(), to, i, 0, 10); err != nil {
			t.Fatal(err)
		}
		if err := q.wrote(t.Context(), to, 99, 0, 0); err != nil { // no bytes
			t.Fatal(err)
		}
	}
	if !slices.Equal(to.started, inos[:17]) || !slices.Equal(to.awaited, inos[:13]) {
		t.Errorf("started %v, awaited %v, want 17 and 13 of 20", to.started, to.awaited)
	}
	if err := q.wrote(t.Context(), to, 21, 0, 1000); err != nil { // more than every bound
		t.Fatal(err)
	}
	if n := len(to.awaited); n != 21 || q.fresh.bytes+q.started.bytes != 0 {
		t.Errorf("%d awaited, %d bytes left, want 21 and 0", n, q.fresh.bytes+q.started.bytes)
	}
	q, to = dirty{lazy: 30, most: 90, step: 20}, &disk{}
	for i := range metadata.Ino(20) {
		if err := q.wrote(t.Context(), to, i, 0, 10); err != nil {
			t.Fatal(err)
		}
		if n := len(to.started); n%2 != 0 {
			t.Errorf("%d started, want two at a time", n)
		}
		if all := q.fresh.bytes + q.started.bytes; all > q.most {
			t.Errorf("%d bytes wait, want %d at the most", all, q.most)
		}
	}
	to.fails = syscall.EIO
	if err := q.wrote(t.Context(), to, 22, 0, 1000); !errors.Is(err, syscall.EIO) {
		t.Errorf("a disk that fails: %v, want EIO", err)
	}
}
