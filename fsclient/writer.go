package fsclient

import (
	"context"
	"errors"

	"github.com/bivouacfs/bivouac/fsclient/writeback"
)

// Writer is one descriptor of a file. Sequential writes are buffered: they are acknowledged before they have arrived,
// and every process on this node sees them at once. A later call of the Writer returns their error, once, or twice if
// the kernel may have dropped the first (see writeback.Reporter). Sync also returns the losses of other Writers since
// this one was made.
type Writer struct {
	f       *File
	errs    *writeback.Reporter
	writing bool // counted among the writers that Quiesce waits for
}

// Writer returns a Writer of f for one more descriptor. It needs a Close, or a Close of f after a Flush. Descriptors
// that only read have one for Sync.
func (f *File) Writer() *Writer { return &Writer{f: f, errs: f.buffer.Reporter()} }

// ForWriting makes Quiesce wait for the Close of w. It is called before w is used.
func (w *Writer) ForWriting() {
	w.writing = true
	w.f.c.files.writer(1)
}

// WriteAt writes p at offset off. Without an error all of p is written or buffered; with an error, the first n bytes
// are. An error of an earlier write is returned before anything is written.
func (w *Writer) WriteAt(ctx context.Context, p []byte, off int64) (n int, err error) {
	if err := w.errs.BeforeWrite(off, len(p)); err != nil {
		return 0, err
	}
	if !w.f.ino.Sealed() && off >= 0 {
		if n, err = w.f.buffer.Write(ctx, w.errs, p, off); err != nil || n == len(p) {
			return n, err
		}
	}
	w.f.buffer.WrittenThrough(off + int64(len(p)))
	m, err := w.f.WriteAt(ctx, p[n:], off+int64(n))
	return n + m, err
}

// Append writes p at the end of the file, wherever that is, as File.Append does. It is buffered while no other node has
// the file open: the home reports that with each range that it assigns.
func (w *Writer) Append(ctx context.Context, p []byte) (n int, err error) {
	if err := w.errs.BeforeWrite(writeback.AtEnd, len(p)); err != nil {
		return 0, err
	}
	if !w.f.ino.Sealed() && len(p) <= writeback.MaxAppend {
		ok, err := w.f.buffer.Append(ctx, w.errs, p)
		switch {
		case err != nil:
			return 0, err
		case ok:
			return len(p), nil
		}
	}
	return w.f.Append(ctx, p)
}

// WriteThrough is WriteAt that returns when p has arrived.
func (w *Writer) WriteThrough(ctx context.Context, p []byte, off int64) (n int, err error) {
	if err := w.errs.BeforeWrite(off, len(p)); err != nil {
		return 0, err
	}
	return w.f.WriteAt(ctx, p, off)
}

// AppendThrough is Append that returns when p has arrived.
func (w *Writer) AppendThrough(ctx context.Context, p []byte) (n int, err error) {
	if err := w.errs.BeforeWrite(writeback.AtEnd, len(p)); err != nil {
		return 0, err
	}
	return w.f.Append(ctx, p)
}

// Flush sends the buffered bytes, and publishes the writes to the file's home. The error is from this Writer's writes,
// or from the home.
func (w *Writer) Flush(ctx context.Context) error {
	err := w.f.Flush(ctx)
	return errors.Join(w.errs.Take(), err)
}

// Sync makes durable the writes of all Writers of this node, and flushes. It returns each loss once to each Writer,
// whichever Writer wrote the bytes, and so an error that a disk reports only once.
func (w *Writer) Sync(ctx context.Context) error { return w.sync(ctx, false) }

// SyncWrite is Sync as part of a write with O_SYNC. If the write may be the rest of a larger one, its error is returned
// once more.
func (w *Writer) SyncWrite(ctx context.Context) error { return w.sync(ctx, true) }

func (w *Writer) sync(ctx context.Context, write bool) error {
	err := w.f.Sync(ctx)
	lost := w.errs.TakeAll(write)
	if lost != nil && errors.Is(err, lost) { // it was lost by this Sync
		return err
	}
	return errors.Join(lost, err)
}

// Clean reports whether nothing would be lost if this process ended now: all writes have arrived, the stored size
// covers them, and there is no error to report.
func (w *Writer) Clean() bool {
	w.f.mu.Lock()
	known := (!w.f.dirty || w.f.end <= w.f.attr.Size) && !w.f.app.Invisible()
	w.f.mu.Unlock()
	return known && w.errs.Clean()
}

// Told reports whether the home knows of all changes to the file: it gives a changed file a new version, which makes
// other nodes drop its pages.
func (w *Writer) Told() bool { return !w.f.isDirty() }

// Adopted records that the descriptor of w was open in an earlier process of this node. If lost is not nil, the next
// call of w returns it: writes were lost with that process. told is the value of Told in that process.
func (w *Writer) Adopted(lost error, told bool) {
	w.errs.Adopted(lost)
	if !told {
		w.f.torn()
	}
}

// Repeat makes the next call of w return err again, after a write of its descriptor returned it.
func (w *Writer) Repeat(err error) { w.errs.Repeat(err) }

// Close flushes and closes the file.
func (w *Writer) Close(ctx context.Context) error {
	err := w.f.Close(ctx)
	if w.writing {
		w.f.c.files.writer(-1)
	}
	return errors.Join(w.errs.Take(), err)
}
