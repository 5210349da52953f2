package writeback

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// bufferSize is the size of a file's buffer, which is sent as one batch: a write request of the kernel, and a part
	// of a chunk of the usual size.
	bufferSize = 512 << 10
	// maxSending bounds the batches of a file that are in flight while the next is filled: they go to several nodes if
	// the file is striped.
	maxSending = 4
)

// MaxAppend is the longest append that can be buffered.
const MaxAppend = bufferSize

// File is the file that a Buffer writes to.
type File interface {
	// Ino returns its inode.
	Ino() metadata.Ino
	// WriteThrough writes p at offset off. With an error, n bytes are written.
	WriteThrough(ctx context.Context, p []byte, off int64) (n int, err error)
	// AppendThrough writes p at the end of the file, wherever that is.
	AppendThrough(ctx context.Context, p []byte) (n int, err error)
	// Alone reports whether no other node has the file open. A caller that ends this state then calls DrainBegun.
	Alone() bool
	// Spans returns where n bytes go that are written at offset off or, with AtEnd, appended behind the pending bytes
	// that have not arrived.
	Spans(off, pending, n int64) []datapath.Span
}

// Buffer holds bytes that were written to a file in sequence and acknowledged, and have not arrived.
type Buffer struct {
	pool   *Pool
	file   File
	writer wait.Mutex // held by the write that is being buffered

	mu      sync.Mutex
	data    []byte      // under mu: nil if nothing is buffered
	off     int64       // under mu: where data goes, or AtEnd
	by      []*Reporter // under mu: the descriptors that wrote data
	next    int64       // under mu: the offset that continues the last write; AtEnd for appends
	sending []*batch    // under mu: oldest first
	losses  uint64      // under mu: counts losses of acknowledged bytes
	lost    error       // under mu: the last loss
}

const (
	// AtEnd stands for the offset of an append.
	AtEnd = -1
	// nowhere is the value of next before the first write.
	nowhere = -2
	// anywhere stands for all offsets.
	anywhere = -3
)

// Buffer returns an empty buffer of f.
func (p *Pool) Buffer(f File) *Buffer {
	return &Buffer{pool: p, file: f, writer: wait.NewMutex(), next: nowhere}
}

// Write buffers the first n bytes of p, which r's descriptor writes at off: none if the write does not continue the
// last one. If n < len(p), no bytes are in flight when Write returns, and the caller writes the rest through.
func (b *Buffer) Write(ctx context.Context, r *Reporter, p []byte, off int64) (n int, err error) {
	if err := b.writer.Lock(ctx); err != nil {
		return 0, fmt.Errorf("write to %v: %w", b.file.Ino(), err)
	}
	defer b.writer.Unlock()
	for b.continues(off+int64(n), len(p)-n) && n < len(p) {
		m, err := b.fill(ctx, r, p[n:], off+int64(n))
		if n += m; err != nil {
			return n, err
		}
		if m == 0 {
			break
		}
	}
	if n == len(p) {
		return n, nil
	}
	return n, b.Drain(ctx)
}

// Append buffers an append as a whole or not at all.
func (b *Buffer) Append(ctx context.Context, r *Reporter, p []byte) (ok bool, err error) {
	if err := b.writer.Lock(ctx); err != nil {
		return false, fmt.Errorf("append to %v: %w", b.file.Ino(), err)
	}
	defer b.writer.Unlock()
	if b.continues(AtEnd, len(p)) && b.file.Alone() {
		b.makeRoom(len(p))
		n, err := b.fill(ctx, r, p, AtEnd)
		if n > 0 || err != nil {
			return n > 0, err
		}
	}
	b.WrittenThrough(AtEnd)
	return false, b.Drain(ctx)
}

// WrittenThrough records that a write that bypassed the buffer ends at end, or is an append. The next write that
// continues it can be buffered.
func (b *Buffer) WrittenThrough(end int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = end
}

// continues reports whether a write of n bytes at off continues the last one.
func (b *Buffer) continues(off int64, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return n > 0 && b.next == off
}

// makeRoom sends the buffered bytes if n more bytes do not fit.
func (b *Buffer) makeRoom(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.data != nil && len(b.data)+n > bufferSize {
		b.send()
	}
}

// fill buffers as much of p as fits in one batch; 0 if no buffer is available. b.writer is held.
func (b *Buffer) fill(ctx context.Context, r *Reporter, p []byte, off int64) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.adjacent(off) {
		b.mu.Unlock()
		err := b.Drain(ctx)
		b.mu.Lock()
		if err != nil {
			return 0, err
		}
	}
	if b.data == nil {
		b.mu.Unlock()
		data, err := b.allocate(ctx, off)
		b.mu.Lock()
		if data == nil || err != nil {
			return 0, err
		}
		if !b.pool.add(b) {
			b.pool.put(data)
			return 0, nil
		}
		b.data, b.off = data, off
	}
	n := min(len(p), b.limit()-len(b.data))
	b.data = append(b.data, p[:n]...)
	b.next = behind(off, n)
	if !slices.Contains(b.by, r) {
		b.by = append(b.by, r)
	}
	if len(b.data) == b.limit() {
		b.send()
	}
	b.pool.buffered.Add(int64(n))
	return n, nil
}

// adjacent reports whether a write at off is right behind all bytes that have not arrived, so that it overwrites none
// of them; b.mu is held.
func (b *Buffer) adjacent(off int64) bool {
	switch n := len(b.sending); {
	case b.data != nil:
		return off == behind(b.off, len(b.data))
	case n > 0:
		return off == behind(b.sending[n-1].off, len(b.sending[n-1].data))
	}
	return true
}

// behind returns the offset behind n bytes at off.
func behind(off int64, n int) int64 {
	if off == AtEnd {
		return AtEnd
	}
	return off + int64(n)
}

// arrived reports whether all buffered bytes have arrived; b.mu is held.
func (b *Buffer) arrived() bool { return b.data == nil && len(b.sending) == 0 }

// pending returns how many bytes have not arrived.
func (b *Buffer) pending() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.data)
	for _, s := range b.sending {
		n += len(s.data)
	}
	return int64(n)
}

// limit returns the maximum length of data: a batch ends where a chunk may end; b.mu is held.
func (b *Buffer) limit() int {
	if b.off == AtEnd {
		return bufferSize
	}
	return int(bufferSize - b.off%bufferSize)
}

// allocate waits until one more batch may be filled, and returns empty memory for it, or nil if the bytes at off must
// be written through.
func (b *Buffer) allocate(ctx context.Context, off int64) ([]byte, error) {
	if err := b.awaitSending(ctx, maxSending); err != nil {
		return nil, fmt.Errorf("write to %v: %w", b.file.Ino(), err)
	}
	for _, s := range b.file.Spans(off, b.pending(), bufferSize) {
		if !b.pool.hasRoom(ctx, s.Node, s.Len) {
			return nil, nil
		}
	}
	return b.pool.get(), nil
}
