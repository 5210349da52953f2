package fsclient_test

import (
	"errors"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// wantSize waits until the home of f knows the given size.
func (j *job) wantSize(t *testing.T, f *fsclient.File, size int64) {
	t.Helper()
	eventually(t, "the home knows how far was written", func() bool {
		a, err := j.meta[f.Ino().Home()].Getattr(ctx, f.Ino())
		return err == nil && a.Size == size
	})
}

// TestThroughIsPublished: the home soon learns of unbuffered writes, without a later call.
func TestThroughIsPublished(t *testing.T) {
	for name, do := range map[string]func(f *fsclient.File, w *fsclient.Writer) error{
		"first write": func(_ *fsclient.File, w *fsclient.Writer) error {
			_, err := w.WriteAt(ctx, pattern(100), 0)
			return err
		},
		"direct": func(_ *fsclient.File, w *fsclient.Writer) error {
			_, err := w.WriteThrough(ctx, pattern(100), 0)
			return err
		},
		"random": func(_ *fsclient.File, w *fsclient.Writer) error {
			_, err := w.WriteAt(ctx, pattern(10), 90)
			_, err2 := w.WriteAt(ctx, pattern(10), 20)
			return errors.Join(err, err2)
		},
		"fallocate": func(f *fsclient.File, _ *fsclient.Writer) error { return f.Allocate(ctx, 0, 100) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, _, cs := metered(t, 2)
			f := onNode(t, cs[1], "f", 1)
			w := f.Writer()
			if err := do(f, w); err != nil {
				t.Fatal(err)
			}
			j.wantSize(t, f, 100)
			eventually(t, "nothing would be lost", w.Clean)
			closed(t, f)
		})
	}
}

// TestLastBatchIsPublished: the home learns of a batch that arrives while the previous one is being published.
func TestLastBatchIsPublished(t *testing.T) {
	t.Parallel()
	const part = 512 << 10
	j, h, _, c := hooked(t)
	f := onNode(t, c, "f", 1)
	if f.Ino().Home() != 0 {
		t.Fatalf("the home is node %d", f.Ino().Home())
	}
	w := f.Writer()
	must(t, part)(w.WriteAt(ctx, pattern(part), 0))
	h.afterSetattr(func(metadata.Change) {
		must(t, part)(w.WriteAt(ctx, pattern(part), part)) // a whole batch is sent immediately
		if err := c.Drain(ctx); err != nil {
			t.Error(err)
		}
	})
	j.wantSize(t, f, 2*part)
	closed(t, f)
}

// TestOldSizeUndoesNoTruncate: a size that was published is not published again after a truncate by another node.
func TestOldSizeUndoesNoTruncate(t *testing.T) {
	t.Parallel()
	j, h, other, c := hooked(t)
	f := onNode(t, c, "f", 1)
	if f.Ino().Home() != 0 {
		t.Fatalf("the home is node %d", f.Ino().Home())
	}
	must(t, 1<<20)(f.WriteAt(ctx, pattern(1<<20), 0))
	h.afterSetattr(func(metadata.Change) { must(t, 10)(f.WriteAt(ctx, pattern(10), 0)) })
	if err := f.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Truncate(ctx, f.Ino(), 0); err != nil {
		t.Fatal(err)
	}
	must(t, 10)(f.WriteAt(ctx, pattern(10), 0))
	if err := f.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	j.wantSize(t, f, 10)
	closed(t, f)
}

// TestRewriteIsPublishedAfterAdoption: bytes rewritten in place and not published when the daemon ends become a new
// version of the file once the next daemon closes the adopted descriptor.
func TestRewriteIsPublishedAfterAdoption(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{false, true} {
		j, _, cs := metered(t, 2)
		a := create(t, cs[0], metadata.RootIno, "f", 10000)
		f, err := j.client(t, 1, nil).Reopen(ctx, a.Ino, false)
		if err != nil {
			t.Fatal(err)
		}
		w := f.Writer()
		w.Adopted(nil, told)
		if err := w.Close(ctx); err != nil {
			t.Fatal(err)
		}
		after, err := j.meta[a.Ino.Home()].Getattr(ctx, a.Ino)
		if err != nil || after.Size != a.Size || (after.Ctime == a.Ctime && after.Mtime == a.Mtime) != told {
			t.Errorf("the home has heard of all changes: %v; after the close %+v, %v, before %+v", told, after, err, a)
		}
	}
}

// TestRewriteIsClean: after a write in place no data would be lost, but the write must be published to the home.
func TestRewriteIsClean(t *testing.T) {
	t.Parallel()
	_, _, cs := metered(t, 2)
	a := create(t, cs[0], metadata.RootIno, "f", 10000)
	f, err := cs[1].Open(ctx, a.Ino)
	if err != nil {
		t.Fatal(err)
	}
	w := f.Writer()
	must(t, 100)(w.WriteThrough(ctx, make([]byte, 100), 5000))
	if !w.Clean() {
		t.Error("bytes that have arrived would be lost")
	}
	eventually(t, "the home has heard", w.Told)
	closed(t, f)
}
