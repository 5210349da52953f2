package fill_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// crammed returns the finished fill of a directory of n files on a node with the given room.
func crammed(t *testing.T, n int, room int64, asks bool) (*jobtest.Job, *fill.Fill, []manifest.Record) {
	t.Helper()
	j, f, files := treeFill(t, n)
	var left atomic.Int64
	left.Store(room)
	if asks {
		f.Config().Room = func(_ metadata.Ino, n int64) bool { return left.Load() >= n }
	}
	put := f.Config().Put
	f.Config().Put = func(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
		if left.Add(-int64(len(p))) < 0 {
			left.Add(int64(len(p)))
			return fmt.Errorf("object %v: %w", ino, syscall.ENOSPC)
		}
		return put(ctx, ino, p, off)
	}
	f.Config().Drop = func(_ context.Context, ino metadata.Ino) error {
		if f.Present(fill.PieceID{Ino: ino}) {
			t.Errorf("inode %v is dropped that is here", ino)
		}
		return nil
	}
	whole := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	wg.Go(func() {
		f.Run(context.Background(), func() {
			if _, is := f.Done(); is || f.Err() != nil {
				once.Do(func() { close(whole) })
			}
		})
	})
	t.Cleanup(func() {
		stageintest.NoError(t, f.Close())
		wg.Wait()
	})
	<-whole
	stageintest.NoError(t, f.Err())
	var regular []manifest.Record
	for _, r := range files.Records {
		if jobtest.HasData(&r) {
			regular = append(regular, r)
		}
	}
	return j, f, regular
}

// TestDisplacedIsReadThrough: a file that does not fit is no error, is counted, and is read from the source, once for
// all its readers; a file that fits is stored. This holds whether the room is checked in advance or the shortage is
// found on storing.
func TestDisplacedIsReadThrough(t *testing.T) {
	for _, asks := range []bool{true, false} {
		j, f, files := crammed(t, 20, 5000, asks)
		missing, _ := f.Missing()
		if n := f.Overflow(); n.Bytes != n.Files*1000 || n.Files < 15 || n.Files > 19 || missing != 0 {
			t.Errorf("overflowed: %+v, lacking %d", n, missing)
		}
		if p := f.Progress(); p.Files != 20-f.Overflow().Files || !p.Done || p.Bytes != p.SourceTotal {
			t.Errorf("progress: %+v", p)
		}
		var reads atomic.Int64
		j.FS.OnRead = func(string, int64) { reads.Add(1) }
		overflowed := int64(0)
		for range 2 {
			for i := range files {
				overflowed += wantObject(t, j, f, &files[i])
			}
		}
		if n := f.Overflow().Files; overflowed != 2*n || reads.Load() != n {
			t.Errorf("%d reads were of overflowed files, %d of the source, want %d and %d", overflowed, reads.Load(), 2*n, n)
		}
	}
}

// wantObject reads all of a node's object of a file and returns 1 if the file overflowed, else 0.
func wantObject(t *testing.T, j *jobtest.Job, f *fill.Fill, r *manifest.Record) (overflowed int64) {
	t.Helper()
	var number byte
	if _, err := fmt.Sscanf(r.Path, "f%02d", &number); err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte{number}, int(r.Attr.Size))
	here := func(p []byte, off int64) (int, error) {
		return copy(p, j.Target.Objects[stageintest.ObjectKey{Node: 0, Ino: r.Attr.Ino}][off:]), nil
	}
	p := make([]byte, r.Attr.Size)
	err := f.Need(t.Context(), r.Attr.Ino, 0, r.Attr.Size)
	n := 0
	switch {
	case errors.Is(err, fill.ErrOverflow):
		overflowed = 1
		n, err = f.ReadOverflow(t.Context(), r.Attr.Ino, p[10:], 10, here)
		n += copy(p[:10], want)
	case err == nil:
		n, err = here(p, 0)
	}
	if err != nil || n != len(want) || !bytes.Equal(p, want) {
		t.Errorf("%s: %d bytes, %v", r.Path, n, err)
	}
	return overflowed
}

// TestDisplacedSourceChanges: reading an overflow file that changed in the source fails with EIO and reports its name.
func TestDisplacedSourceChanges(t *testing.T) {
	j, f, files := crammed(t, 5, 0, true)
	r := &files[3]
	j.FS.Add(j.Path+"/"+r.Path, r.Attr.Mode, []byte("shorter"))
	if err := f.Need(t.Context(), r.Attr.Ino, 0, 10); !errors.Is(err, fill.ErrOverflow) {
		t.Fatalf("Need = %v", err)
	}
	_, err := f.ReadOverflow(t.Context(), r.Attr.Ino, make([]byte, 10), 0, nil)
	bad, more := f.Unreadable()
	if !errors.Is(err, syscall.EIO) || len(bad) != 1 || more != 0 || string(bad[0].Path) != r.Path || !strings.Contains(bad[0].Error, "stage it in again") {
		t.Errorf("read = %v, unreadable %+v and %d more", err, bad, more)
	}
}

// TestDisplacedStays: an overflow file is neither accepted from another node nor fetched again, even if there is room
// by then.
func TestDisplacedStays(t *testing.T) {
	_, f, files := crammed(t, 5, 0, true)
	f.Config().Room = nil
	c := fill.Offer{By: 1, Incarnation: 1}
	var inos []metadata.Ino
	for _, r := range files {
		c.Pieces, inos = append(c.Pieces, fill.PieceID{Ino: r.Attr.Ino}), append(inos, r.Attr.Ino)
	}
	if granted := f.Accept(c); slices.Contains(granted, true) {
		t.Errorf("granted: %v", granted)
	}
	f.WithdrawAll(false)
	if failed, err := f.Refetch(t.Context(), inos); err != nil || len(failed) > 0 {
		t.Errorf("again: %v, %v", failed, err)
	}
	if n := f.Overflow(); n.Files != 5 {
		t.Errorf("overflowed: %+v", n)
	}
}
