package fsclient

import (
	"context"
	"errors"
)

// Writer is what one open file of the application writes with. Writes in sequence
// are gathered: they are acknowledged before they have arrived, so that who writes
// does not wait for one before he can go on with the next. An error
// of theirs is that of a later call, once (twice, if the first may not have been heard), and of no other Writer's that had no
// part in them; but Sync tells each Writer that there was of all that was lost
// since it was made. Everybody on this node sees what was written at once.
//
// What is gathered is sent when there is enough, after half a second, and before
// anything that depends on it: a read, a look at the attributes, a change of the
// size, another way to write, Flush and Sync.
type Writer struct {
	f      *File
	writes bool   // LastWrites waits for Close
	err    error  // under f.tail.mu: of what was acknowledged
	first  int64  // under f.tail.mu: where the rest of the last write begins, if it may have been the first part of one; nowhere if not
	rest   bool   // under f.tail.mu: the last write began there
	knows  uint64 // under f.tail.mu: how many losses it was told of, or has as err
}

// Writer is another way to write to f. It ends with f, after a Flush. Who only
// reads has one for Sync.
func (f *File) Writer() *Writer {
	f.tail.mu.Lock()
	defer f.tail.mu.Unlock()
	return &Writer{f: f, first: nowhere, knows: f.tail.losses}
}

// Writes says that w is not only for Sync: LastWrites waits for its Close. It is
// called before w is used.
func (w *Writer) Writes() {
	w.writes = true
	w.f.c.files.writer(1)
}

// WriteAt writes p at offset off. Without an error all of p is written, or
// gathered; with one, the first n bytes are. An error of an earlier write is told
// before anything is written.
func (w *Writer) WriteAt(ctx context.Context, p []byte, off int64) (n int, err error) {
	if err := w.toldAt(off, len(p)); err != nil {
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
	if err := w.toldAt(atEnd, len(p)); err != nil {
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
	if err := w.toldAt(off, len(p)); err != nil {
		return 0, err
	}
	return w.f.WriteAt(ctx, p, off)
}

// AppendThrough is Append that returns when p has arrived.
func (w *Writer) AppendThrough(ctx context.Context, p []byte) (n int, err error) {
	if err := w.toldAt(atEnd, len(p)); err != nil {
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

// Sync makes what was written durable, by all on this node, and flushes. What of
// it was lost is told to each Writer once, whoever wrote it, and so is what a
// disk says once.
func (w *Writer) Sync(ctx context.Context) error { return w.sync(ctx, false) }

// SyncWrite is Sync that a write does which has to be durable when it returns. If that may be
// the rest of one, what was lost is told once more.
func (w *Writer) SyncWrite(ctx context.Context) error { return w.sync(ctx, true) }

func (w *Writer) sync(ctx context.Context, write bool) error {
	err := w.f.Sync(ctx)
	lost := w.toldAll(write)
	if lost != nil && errors.Is(err, lost) { // now
		return err
	}
	return errors.Join(lost, err)
}

// Close is Flush for the last time, and closes the file.
func (w *Writer) Close(ctx context.Context) error {
	err := w.f.Close(ctx)
	if w.writes {
		w.f.c.files.writer(-1)
	}
	return errors.Join(w.told(), err)
}

// largePart is how large a write is, at the least, that may be the first part of a larger
// one: the kernel makes parts as large as it can.
const largePart = 64 << 10

// toldAt is told, by a write of n bytes at off. If that may be the rest of a write of which a part
// was written, the kernel says that so much was, and nobody hears of the error: then it
// is told once more.
func (w *Writer) toldAt(off int64, n int) error {
	w.f.tail.mu.Lock()
	defer w.f.tail.mu.Unlock()
	err, rest := w.err, w.first == off
	if err != nil && rest {
		w.first = nowhere
		return err
	}
	w.err, w.first, w.rest = nil, nowhere, rest
	if err == nil && n >= largePart {
		w.first = behind(off, n)
	}
	return err
}

// told takes the error that has to be told.
func (w *Writer) told() error {
	w.f.tail.mu.Lock()
	defer w.f.tail.mu.Unlock()
	err := w.err
	w.err = nil
	return err
}

// toldAll takes the error that has to be told when all must be durable; with write, by a
// write: see toldAt.
func (w *Writer) toldAll(write bool) error {
	t := &w.f.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	err := w.err
	if err == nil && w.knows < t.losses {
		err = t.lost
	}
	w.err, w.knows = nil, t.losses
	if err != nil && write && w.rest {
		w.err, w.first = err, nowhere
	}
	return err
}

// lose notes what was acknowledged and is lost, and was written by by; t.mu is
// held. Of several errors of a Writer the first one is told.
func (t *tail) lose(err error, by []*Writer) {
	t.losses++
	t.lost = err
	for _, w := range by {
		if w.knows++; w.err == nil {
			w.err = err
		}
	}
}
