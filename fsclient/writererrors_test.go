package fsclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
)

// TestBufferedWriteFails: each descriptor that wrote to a failed batch gets the error once, from its next call; other
// descriptors do not.
func TestBufferedWriteFails(t *testing.T) {
	for name, next := range map[string]func(w *fsclient.Writer) error{
		"write":   func(w *fsclient.Writer) error { _, err := w.WriteAt(ctx, []byte("x"), 2000); return err },
		"through": func(w *fsclient.Writer) error { _, err := w.WriteThrough(ctx, []byte("x"), 2000); return err },
		"append":  func(w *fsclient.Writer) error { _, err := w.Append(ctx, []byte("x")); return err },
		"flush":   func(w *fsclient.Writer) error { return w.Flush(ctx) },
		"sync":    func(w *fsclient.Writer) error { return w.Sync(ctx) },
		"close":   func(w *fsclient.Writer) error { return w.Close(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, ms, cs := metered(t, 2)
			f := onNode(t, cs[0], "f", 1)
			a, b, other := f.Writer(), f.Writer(), f.Writer()
			must(t, 400)(a.WriteAt(ctx, pattern(400), 0))
			ms[1].set(syscall.EIO, nil)
			must(t, 300)(a.WriteAt(ctx, pattern(300), 400))
			must(t, 300)(b.WriteAt(ctx, pattern(300), 700))
			if n, err := f.Read(ctx, make([]byte, 1000), 0, fsclient.ReadOpts{}); n != 400 || err != nil {
				t.Errorf("a read = %d, %v, want the 400 bytes that have arrived", n, err)
			}
			ms[1].set(nil, nil)
			if err := other.Flush(ctx); err != nil {
				t.Errorf("a descriptor that wrote nothing gets %v", err)
			}
			for _, w := range []*fsclient.Writer{a, b} {
				if err := next(w); !errors.Is(err, syscall.EIO) {
					t.Errorf("the next call of a writer = %v, want EIO", err)
				}
				if err := w.Flush(ctx); err != nil {
					t.Errorf("the call after it = %v", err)
				}
			}
		})
	}
}

// TestErrorIsRepeated: the kernel splits a large write into parts. If a part other than the first returns the error of
// an earlier write, the kernel returns the length of the earlier parts and drops the error. So a writer that continues
// gets the error again.
func TestErrorIsRepeated(t *testing.T) {
	const part = 512 << 10
	at := func(w *fsclient.Writer, off int64) error { _, err := w.WriteAt(ctx, pattern(part), off); return err }
	appended := func(w *fsclient.Writer, _ int64) error { _, err := w.Append(ctx, pattern(part)); return err }
	elsewhere := func(w *fsclient.Writer, _ int64) error { return at(w, 10*part) }
	for name, c := range map[string]struct {
		write func(w *fsclient.Writer, off int64) error
		next  func(w *fsclient.Writer, off int64) error
		times int
	}{
		"the rest":      {at, at, 2},
		"an append":     {at, appended, 1},
		"elsewhere":     {at, elsewhere, 1},
		"all appending": {appended, appended, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, ms, cs := metered(t, 2)
			f := onNode(t, cs[0], "f", 1)
			w := f.Writer()
			if err := c.write(w, 0); err != nil {
				t.Fatal(err)
			}
			ms[1].set(syscall.ENOSPC, nil)
			if err := c.write(w, part); err != nil {
				t.Fatalf("the buffered write = %v", err)
			}
			if _, err := f.Read(ctx, make([]byte, 1), 0, fsclient.ReadOpts{}); err != nil { // the data has not arrived
				t.Fatal(err)
			}
			ms[1].set(nil, nil)
			for i := range c.times {
				if err := c.next(w, 2*part); !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("call %d = %v, want ENOSPC", i, err)
				}
			}
			if err := errors.Join(c.next(w, 2*part), w.Close(ctx)); err != nil {
				t.Errorf("reported once more: %v", err)
			}
		})
	}
}

// TestNoBufferOnFullNode: writes to a node with little space are not buffered, so that the write itself returns ENOSPC.
func TestNoBufferOnFullNode(t *testing.T) {
	_, ms, cs := metered(t, 2)
	f := onNode(t, cs[0], "f", 1)
	w := f.Writer()
	ms[1].full.Store(true)
	must(t, 100)(w.WriteAt(ctx, pattern(100), 0))
	must(t, 100)(w.WriteAt(ctx, pattern(100), 100))
	ms[1].set(syscall.ENOSPC, nil)
	if n, err := w.WriteAt(ctx, pattern(100), 200); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote %d, %v, want ENOSPC", n, err)
	}
	if n, err := w.Append(ctx, pattern(100)); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("appended %d, %v, want ENOSPC", n, err)
	}
	if s := cs[0].Stats(); s.Buffered != 0 {
		t.Errorf("%d bytes were buffered", s.Buffered)
	}
	closed(t, f)
}

// TestInterruptedAppend: an append that is interrupted while it waits for batches in flight is not written.
func TestInterruptedAppend(t *testing.T) {
	j, ms, cs := metered(t, 2)
	f := onNode(t, cs[0], "log", 1)
	w := f.Writer()
	const size = 64 << 10
	p := pattern(size)
	must(t, size)(w.Append(ctx, p)) // from now on this node knows that no other node has the file open
	gate := make(chan struct{})
	ms[1].set(nil, gate)
	n := 1
	for ; n < 1+4*512/64; n++ { // four batches
		must(t, size)(w.Append(ctx, p))
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if n, err := w.Append(canceled, p); n != 0 || !errors.Is(err, syscall.EINTR) {
		t.Errorf("appended %d, %v, want EINTR", n, err)
	}
	close(gate)
	if err := w.Close(ctx); err != nil {
		t.Error(err)
	}
	if got := j.object(t, 1, f.Ino(), 1000*size); len(got) != n*size {
		t.Errorf("%d bytes, want %d", len(got), n*size)
	}
}

// TestDrainWaitsForOldBuffers: Drain waits for batches that were sent because of their age.
func TestDrainWaitsForOldBuffers(t *testing.T) {
	_, ms, cs := metered(t, 2)
	f := onNode(t, cs[0], "f", 1)
	w := f.Writer()
	must(t, 10)(w.WriteAt(ctx, pattern(10), 0))
	before := ms[1].writes.Load()
	gate := make(chan struct{})
	ms[1].set(nil, gate)
	must(t, 10)(w.WriteAt(ctx, pattern(10), 10))
	eventually(t, "the old buffer is sent", func() bool { return ms[1].writes.Load() > before })
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := cs[0].Drain(canceled); !errors.Is(err, syscall.EINTR) {
		t.Errorf("%v, want EINTR", err)
	}
	close(gate)
	if err := errors.Join(cs[0].Drain(ctx), w.Close(ctx)); err != nil {
		t.Error(err)
	}
}

// TestWriteAfterClose: writes from the kernel after the client was closed are sent unbuffered.
func TestWriteAfterClose(t *testing.T) {
	j, _, cs := metered(t, 2)
	f := onNode(t, cs[0], "f", 1)
	w := f.Writer()
	want := buffered(t, w)
	cs[0].Close()
	must(t, 100)(w.WriteAt(ctx, pattern(100), 1000))
	if got := j.object(t, 1, f.Ino(), 2000); !bytes.Equal(got, append(want, pattern(100)...)) {
		t.Errorf("%d bytes have arrived, or other ones", len(got))
	}
}

// TestBuffersAreBounded: sequential writes to many files use at most all buffers; other writes are unbuffered.
func TestBuffersAreBounded(t *testing.T) {
	_, _, cs := metered(t, 1)
	const files = 200
	var fs []*fsclient.File
	var ws []*fsclient.Writer
	for k := range files {
		fs = append(fs, onNode(t, cs[0], fmt.Sprint("f", k), 0))
		ws = append(ws, fs[k].Writer())
	}
	most := int64(0)
	for k := range 5 {
		for _, w := range ws {
			must(t, 100)(w.WriteAt(ctx, pattern(500)[k*100:][:100], int64(k*100)))
		}
		most = max(most, cs[0].Stats().Buffers)
	}
	if most == 0 || most*(512<<10) > fsclient.WriteMemory {
		t.Errorf("%d buffers in use", most)
	}
	for k, w := range ws {
		if err := w.Close(ctx); err != nil {
			t.Error(err)
		}
		if got := read(t, cs[0], fs[k].Ino()); !bytes.Equal(got, pattern(500)) {
			t.Fatalf("file %d: %d bytes", k, len(got))
		}
	}
	if s := cs[0].Stats(); s.Buffers != 0 {
		t.Errorf("%+v", s)
	}
}
