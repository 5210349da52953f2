package writeback

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// fakeFile stores what is written to it. Writes wait for gate, if it is set.
type fakeFile struct {
	mu     sync.Mutex
	data   []byte
	writes int
	fail   error
	gate   chan struct{}
	shared bool // another node has it open
}

func (f *fakeFile) Ino() metadata.Ino { return 4711 }

func (f *fakeFile) WriteThrough(_ context.Context, p []byte, off int64) (int, error) {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	if f.fail != nil {
		return 0, f.fail
	}
	f.data = append(f.data, make([]byte, max(int(off)+len(p)-len(f.data), 0))...)
	return copy(f.data[off:], p), nil
}

func (f *fakeFile) AppendThrough(ctx context.Context, p []byte) (int, error) {
	f.mu.Lock()
	end := int64(len(f.data))
	f.mu.Unlock()
	return f.WriteThrough(ctx, p, end)
}

func (f *fakeFile) Alone() bool { return !f.shared }

func (f *fakeFile) Spans(off, pending, n int64) []datapath.Span {
	return []datapath.Span{{Node: 1, Pos: max(off, pending), Len: n}}
}

func (f *fakeFile) set(fail error, gate chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.gate = fail, gate
}

type fakeClient struct {
	free    int64
	flushed chan File
	flush   func() // called during a flush; may be nil
}

func (c *fakeClient) Flush(_ context.Context, f File) bool {
	if c.flush != nil {
		c.flush()
	}
	c.flushed <- f
	return false
}
func (c *fakeClient) Nodes() int { return 2 }
func (c *fakeClient) Free(context.Context, metadata.NodeID) (int64, error) {
	return c.free, nil
}

func newBuffer(t *testing.T, free int64) (*Pool, *Buffer, *fakeFile) {
	t.Helper()
	l := logrus.New()
	l.SetOutput(io.Discard)
	c := &fakeClient{free: free, flushed: make(chan File, 100)}
	p := NewPool(c, logrus.NewEntry(l), time.Now)
	t.Cleanup(p.Close)
	f := &fakeFile{}
	return p, p.Buffer(f), f
}

const plenty = 1 << 40

func write(t *testing.T, b *Buffer, r *Reporter, p []byte, off int64, want int) {
	t.Helper()
	n, err := b.Write(context.Background(), r, p, off)
	if n != want || err != nil {
		t.Fatalf("Write(%d bytes, %d) = %d, %v, want %d", len(p), off, n, err, want)
	}
}

// TestSequentialWrites: only writes that continue the last one are buffered, and few batches arrive.
func TestSequentialWrites(t *testing.T) {
	p, b, f := newBuffer(t, plenty)
	r := b.Reporter()
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	const size = 4096
	write(t, b, r, want[:size], 0, 0) // the first write continues no other
	f.data = append(f.data, want[:size]...)
	b.WrittenThrough(size)
	for off := size; off < len(want); off += size {
		write(t, b, r, want[off:][:size], int64(off), size)
	}
	write(t, b, r, want[:size], 0, 0) // back to the start: nothing is in flight
	if !bytes.Equal(f.data, want) || f.writes != len(want)/bufferSize {
		t.Errorf("%d bytes in %d batches, want %d in %d, or other bytes", len(f.data), f.writes, len(want), len(want)/bufferSize)
	}
	if s := p.Stats(); s.Buffers != 0 || s.Buffered != int64(len(want)-size) {
		t.Errorf("Stats = %+v", s)
	}
}

// TestLossIsReported: the descriptors that wrote lost bytes get the error once; others get it only when all bytes must
// be durable.
func TestLossIsReported(t *testing.T) {
	_, b, f := newBuffer(t, plenty)
	writer, other := b.Reporter(), b.Reporter()
	b.WrittenThrough(0)
	f.set(syscall.EIO, nil)
	write(t, b, writer, []byte("lost"), 0, 4)
	if err := b.Drain(context.Background()); err != nil {
		t.Errorf("Drain = %v, want only the error of the wait", err)
	}
	if err := writer.BeforeWrite(4, 4); !errors.Is(err, syscall.EIO) {
		t.Errorf("the next write = %v, want EIO", err)
	}
	if err := errors.Join(writer.Take(), writer.TakeAll(false), other.Take(), b.Reporter().TakeAll(false)); err != nil {
		t.Errorf("reported again, or to a descriptor without a part in it: %v", err)
	}
	if err := other.TakeAll(false); !errors.Is(err, syscall.EIO) {
		t.Errorf("a sync of another descriptor = %v, want EIO", err)
	}
}

// TestLossThatACloseReports: the close can be a child's, so the next sync reports the loss, too.
func TestLossThatACloseReports(t *testing.T) {
	_, b, f := newBuffer(t, plenty)
	writer := b.Reporter()
	b.WrittenThrough(0)
	f.set(syscall.EIO, nil)
	write(t, b, writer, []byte("lost"), 0, 4)
	if err := b.Drain(context.Background()); err != nil {
		t.Errorf("Drain = %v, want only the error of the wait", err)
	}
	for i, want := range []error{syscall.EIO, nil} {
		if err := writer.Take(); !errors.Is(err, want) {
			t.Errorf("close %d = %v, want %v", i, err, want)
		}
	}
	for i, want := range []error{syscall.EIO, nil} {
		if err := writer.TakeAll(false); !errors.Is(err, want) {
			t.Errorf("sync %d = %v, want %v", i, err, want)
		}
	}
}

// TestLossBeforeAdoption: the first write to an adopted descriptor may be the rest of a larger write, whose error the
// kernel drops.
func TestLossBeforeAdoption(t *testing.T) {
	_, b, _ := newBuffer(t, plenty)
	for _, at := range []int64{3 * bufferSize, AtEnd} {
		r := b.Reporter()
		r.Adopted(syscall.EIO)
		for i, want := range []error{syscall.EIO, syscall.EIO, nil} {
			if err := r.BeforeWrite(at, bufferSize); !errors.Is(err, want) {
				t.Errorf("write %d at %d = %v, want %v", i, at, err, want)
			}
		}
	}
	r := b.Reporter()
	r.Adopted(syscall.EIO)
	if err := r.TakeAll(false); !errors.Is(err, syscall.EIO) {
		t.Errorf("a sync = %v, want EIO", err)
	}
	if err := errors.Join(r.BeforeWrite(0, 1), r.Take(), r.TakeAll(true)); err != nil {
		t.Errorf("the calls after the sync = %v", err)
	}
}

// TestLossAfterAdoption: the same for a sync that fails during the first write.
func TestLossAfterAdoption(t *testing.T) {
	_, b, _ := newBuffer(t, plenty)
	r := b.Reporter()
	r.Adopted(nil)
	if err := r.BeforeWrite(3*bufferSize, 4096); err != nil {
		t.Fatal(err)
	}
	b.Lost(syscall.EIO)
	if err := r.TakeAll(true); !errors.Is(err, syscall.EIO) {
		t.Errorf("its sync = %v, want EIO", err)
	}
	for i, want := range []error{syscall.EIO, nil} {
		if err := r.BeforeWrite(0, bufferSize); !errors.Is(err, want) {
			t.Errorf("write %d after it = %v, want %v", i, err, want)
		}
	}
}

// TestLossInAShortPart: the kernel splits a writev(2) of many short segments into short parts, and drops the error of
// each part but the first.
func TestLossInAShortPart(t *testing.T) {
	_, b, _ := newBuffer(t, plenty)
	for _, at := range []int64{0, AtEnd} {
		r := b.Reporter()
		for range 2 {
			if err := r.BeforeWrite(at, 100); err != nil {
				t.Fatal(err)
			}
			at = behind(at, 100)
		}
		b.Lost(syscall.EIO)
		if err := r.TakeAll(true); !errors.Is(err, syscall.EIO) {
			t.Errorf("the sync of the second part = %v, want EIO", err)
		}
		for i, want := range []error{syscall.EIO, nil} {
			if err := r.BeforeWrite(at, 100); !errors.Is(err, want) {
				t.Errorf("write %d after it, at %d = %v, want %v", i, at, err, want)
			}
		}
	}
}

// TestRepeated: the error that a write returns is returned once more, even if no error was known before.
func TestRepeated(t *testing.T) {
	_, b, _ := newBuffer(t, plenty)
	r := b.Reporter()
	r.Adopted(syscall.ENOSPC)
	r.Repeat(syscall.EIO)
	for i, want := range []error{syscall.EIO, nil} {
		if err := r.BeforeWrite(AtEnd, bufferSize); !errors.Is(err, want) {
			t.Errorf("write %d = %v, want %v", i, err, want)
		}
	}
}

// TestNoRoom: no write is buffered for a node with little space.
func TestNoRoom(t *testing.T) {
	_, b, _ := newBuffer(t, spaceEach)
	b.WrittenThrough(0)
	write(t, b, b.Reporter(), []byte("x"), 0, 0)
	if ok, err := b.Append(context.Background(), b.Reporter(), []byte("x")); ok || err != nil {
		t.Errorf("Append = %v, %v, want false", ok, err)
	}
}

// TestAppends: appends are buffered while no other node has the file open.
func TestAppends(t *testing.T) {
	_, b, f := newBuffer(t, plenty)
	b.WrittenThrough(AtEnd)
	for range 3 {
		if ok, err := b.Append(context.Background(), b.Reporter(), []byte("line\n")); !ok || err != nil {
			t.Fatalf("Append = %v, %v", ok, err)
		}
	}
	f.shared = true
	if ok, err := b.Append(context.Background(), b.Reporter(), []byte("line\n")); ok || err != nil {
		t.Errorf("Append to a shared file = %v, %v, want false", ok, err)
	}
	if string(f.data) != "line\nline\nline\n" || f.writes != 1 {
		t.Errorf("the file has %q after %d writes", f.data, f.writes)
	}
}

// TestDrainIsInterrupted: a signal ends the wait, not the write.
func TestDrainIsInterrupted(t *testing.T) {
	p, b, f := newBuffer(t, plenty)
	b.WrittenThrough(0)
	gate := make(chan struct{})
	f.set(nil, gate)
	write(t, b, b.Reporter(), []byte("data"), 0, 4)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, err := range []error{b.Drain(ctx), p.Drain(ctx)} {
		if !errors.Is(err, syscall.EINTR) {
			t.Errorf("Drain = %v, want EINTR", err)
		}
	}
	close(gate)
	if err := p.Drain(context.Background()); err != nil || string(f.data) != "data" {
		t.Errorf("Drain = %v, the file has %q", err, f.data)
	}
}

// TestClosedPool: after Close no write is buffered, and buffered data has been written.
func TestClosedPool(t *testing.T) {
	p, b, f := newBuffer(t, plenty)
	b.WrittenThrough(0)
	write(t, b, b.Reporter(), []byte("data"), 0, 4)
	p.Close()
	if string(f.data) != "data" {
		t.Errorf("the file has %q", f.data)
	}
	write(t, b, b.Reporter(), []byte("more"), 4, 0)
}

// TestOldBuffers: files whose bytes have been buffered long enough are flushed.
func TestOldBuffers(t *testing.T) {
	p, b, f := newBuffer(t, plenty)
	b.WrittenThrough(0)
	write(t, b, b.Reporter(), []byte("data"), 0, 4)
	if got := <-p.client.(*fakeClient).flushed; got != File(f) {
		t.Errorf("%v was flushed", got)
	}
}

// TestFlushSoon: a file with an unbuffered change is flushed, and flushed again if the next change arrives during the
// flush.
func TestFlushSoon(t *testing.T) {
	p, b, _ := newBuffer(t, plenty)
	c := p.client.(*fakeClient)
	changes := 3
	c.flush = func() {
		if changes--; changes > 0 {
			b.FlushSoon()
		}
	}
	b.FlushSoon()
	for range 3 {
		<-c.flushed
	}
	p.Close()
	if len(c.flushed) > 0 || p.pending() {
		t.Errorf("%d flushes more, %v more to come", len(c.flushed), p.pending())
	}
}

// TestClosedIsNotFlushed: a file that is closed soon, as small files are, is not flushed in the background. A batch in
// flight is still waited for.
func TestClosedIsNotFlushed(t *testing.T) {
	p, b, f := newBuffer(t, plenty)
	b.FlushSoon()
	b.Closed()
	if p.pending() {
		t.Error("the closed file is to be flushed")
	}
	b.WrittenThrough(0)
	gate := make(chan struct{})
	f.set(nil, gate)
	write(t, b, b.Reporter(), []byte("data"), 0, 4)
	b.Closed()
	if !p.pending() {
		t.Error("bytes that have not arrived are forgotten")
	}
	close(gate)
}
