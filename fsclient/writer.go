package fsclient

import (
	"context"
	"errors"
)

// Writer is what one open file of the application writes with. Writes in sequence
// are gathered: they are acknowledged before they have arrived, so that who writes
// does not wait for one before he can go on with the next. An error
// of theirs is that of a later call, once, and of no other Writer's that had no
// part in them. Everybody on this node sees what was written at once.
//
// What is gathered is sent when there is enough, after half a second, and before
// anything that depends on it: a read, a look at the attributes, a change of the
// size, another way to write, Flush and Sync.
type Writer struct {
	f   *File
	err error // under f.tail.mu: of what was acknowledged
}

// Writer is another way to write to f. It ends with f, after a Flush.
func (f *File) Writer() *Writer { return &Writer{f: f} }

// WriteAt writes p at offset off. Without an error all of p is written, or
// gathered; with one, the first n bytes are. An error of an earlier write is told
// before anything is written.
func (w *Writer) WriteAt(ctx context.Context, p []byte, off int64) (n int, err error) {
	if err := w.told(); err != nil {
		return 0, err
	}
	if !w.f.ino.Sealed() && off >= 0 {
		if n, err = w.f.gather(ctx, w, p, off); err != nil || n == len(p) {
			return n, err
		}
	}
	w.f.tail.follow(off + int64(len(p)))
	m, err := w.f.WriteAt(ctx, p[n:], off+int64(n))
	return n + m, err
}

// Append writes p at the end of the file, wherever that is, as File.Append does.
// It is gathered as long as no other node has the file open, as far as is known
// here: the home says so with each place that it gives.
func (w *Writer) Append(ctx context.Context, p []byte) (n int, err error) {
	if err := w.told(); err != nil {
		return 0, err
	}
	if !w.f.ino.Sealed() && len(p) <= tailSize {
		ok, err := w.f.gatherWhole(ctx, w, p)
		switch {
		case err != nil:
			return 0, err
		case ok:
			return len(p), nil
		}
	}
	return w.f.Append(ctx, p)
}

// Through is WriteAt that returns when p has arrived.
func (w *Writer) Through(ctx context.Context, p []byte, off int64) (n int, err error) {
	if err := w.told(); err != nil {
		return 0, err
	}
	return w.f.WriteAt(ctx, p, off)
}

// AppendThrough is Append that returns when p has arrived.
func (w *Writer) AppendThrough(ctx context.Context, p []byte) (n int, err error) {
	if err := w.told(); err != nil {
		return 0, err
	}
	return w.f.Append(ctx, p)
}

// Flush sends what was gathered, and tells the file's home. The error is that of
// what this Writer has written, or of the home.
func (w *Writer) Flush(ctx context.Context) error {
	err := w.f.Flush(ctx)
	return errors.Join(w.told(), err)
}

// Sync makes what was written durable, by all on this node, and flushes.
func (w *Writer) Sync(ctx context.Context) error {
	err := w.f.Sync(ctx)
	return errors.Join(w.told(), err)
}

// Close is Flush for the last time, and closes the file.
func (w *Writer) Close(ctx context.Context) error {
	err := w.f.Close(ctx)
	return errors.Join(w.told(), err)
}

// told takes the error that has to be told.
func (w *Writer) told() error {
	w.f.tail.mu.Lock()
	defer w.f.tail.mu.Unlock()
	err := w.err
	w.err = nil
	return err
}

// fail notes an error; w.f.tail.mu is held. The first one is told.
func (w *Writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}
