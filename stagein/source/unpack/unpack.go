package unpack

import (
	"bufio"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/klauspost/compress/zstd"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// MaxWindow is the limit of a decoder's window, in bytes; it is the default limit of the zstd program.
const MaxWindow = 128 << 20

// DamageError reports where decoding of a compressed archive failed.
type DamageError struct {
	Off int64 // in the compressed file; the damage is there or a little before
	Err error // from the decoder
	Cut bool  // the file is truncated
}

// Error implements error.
func (e *DamageError) Error() string {
	if e.Cut {
		return fmt.Sprintf("ends at compressed offset %d in the middle of its data: it is truncated: copy it again", e.Off)
	}
	return fmt.Sprintf("cannot be unpacked at compressed offset %d (%v): it is damaged, or something follows its end", e.Off, e.Err)
}

// Unwrap implements errors.Unwrap: the error is an EBADMSG.
func (e *DamageError) Unwrap() error { return syscall.EBADMSG }

// Stream is the unpacked data of a compressed tar, as consecutive pieces from a pool. It is decoded ahead of the
// reader.
type Stream struct {
	kind   source.Kind
	pool   *source.Pool
	in     *packed
	cancel context.CancelFunc
	wg     sync.WaitGroup
	queue  chan *source.Piece // closed at the end
	err    error              // why it ended; set before queue is closed
	list   *pointList         // collects restart points; may be nil
	from   *RestartPoint      // start of a Range; nil if the file is decoded to its end
	start  *RestartPoint      // restart point from which it is decoded to its end; nil is the beginning
}

// queueSize is how many decoded pieces may wait for the reader.
const queueSize = 4

// Open starts to decode head and all that from reads, which it closes. All pieces but the last are whole buffers.
// Close must be called.
func Open(ctx context.Context, kind source.Kind, head []byte, from *source.Region, pool *source.Pool) *Stream {
	return unpack(ctx, kind, head, from, pool, nil)
}

func unpack(ctx context.Context, kind source.Kind, head []byte, from *source.Region, pool *source.Pool, list *pointList) *Stream {
	ctx, cancel := context.WithCancel(ctx)
	u := &Stream{kind: kind, pool: pool, cancel: cancel, queue: make(chan *source.Piece, queueSize), list: list}
	u.in = &packed{left: head, from: from}
	u.begin(ctx)
	return u
}

func (u *Stream) begin(ctx context.Context) {
	u.wg.Add(1)
	go u.run(ctx)
}

// Next returns the next piece, which the caller must release. It returns io.EOF at the end, when all checksums have
// been verified.
func (u *Stream) Next() (*source.Piece, error) {
	if p, ok := <-u.queue; ok {
		u.Restart(p.Off) // drops older restart points
		return p, nil
	}
	return nil, u.err
}

// Offset is how much of the compressed file has been decoded, in bytes.
func (u *Stream) Offset() int64 { return u.in.offset() }

// Workers is how many parts can be decoded concurrently, if no other archive is being decoded.
func (u *Stream) Workers() int { return workers(u.kind, u.pool) }

// Close stops decoding and waits for all goroutines.
func (u *Stream) Close() {
	u.cancel()
	u.in.from.Close()
	for p := range u.queue {
		p.Release()
	}
	u.wg.Wait()
}

func (u *Stream) run(ctx context.Context) {
	defer u.wg.Done()
	defer close(u.queue)
	defer u.in.release()
	d, err := u.decoder(ctx)
	if err != nil {
		u.err = u.in.explain(err)
		return
	}
	defer d.Close() // it has goroutines until then, and no error of its own
	off := int64(0)
	switch {
	case u.from != nil:
		off = u.from.Off
	case u.start != nil:
		off = u.start.Begin()
		if _, err := fill(make([]byte, off-u.start.Off), d); err != nil {
			u.err = u.in.explain(noEnd(err))
			return
		}
	}
	for u.err == nil {
		p, err := u.pool.Get(ctx)
		if err != nil {
			u.err = err
			return
		}
		p.Off = off
		if u.err = u.in.explain(fillFrom(p, d)); u.err != nil && u.err != io.EOF && u.from == nil {
			p.B = p.B[:len(p.B)/source.BlockSize*source.BlockSize] // a partial block would look like the end
		}
		off += int64(len(p.B))
		select {
		case u.queue <- p:
		case <-ctx.Done():
			p.Release()
			u.err = ctx.Err()
		}
	}
}

// maxNothing limits consecutive empty reads of a decoder.
const maxNothing = 1000

// fillFrom fills the piece.
func fillFrom(p *source.Piece, r io.Reader) error {
	n, err := fill(p.Rest(), r)
	p.Extend(n)
	return err
}

// fill fills b. It returns the error of r: io.ReadFull would hide whether the stream is truncated.
func fill(b []byte, r io.Reader) (n int, err error) {
	defer func() {
		// A panic of the decoder library must not end the daemon.
		if bug := recover(); bug != nil {
			err = fmt.Errorf("the decoder panicked: %v", bug)
		}
	}()
	for nothing := 0; n < len(b); {
		m, err := r.Read(b[n:])
		n += m
		if err != nil {
			return n, err
		}
		if nothing++; m > 0 {
			nothing = 0
		}
		if nothing > maxNothing {
			return n, io.ErrNoProgress
		}
	}
	return n, nil
}

// decoder makes the decoder of the file.
func (u *Stream) decoder(ctx context.Context) (io.ReadCloser, error) {
	switch {
	case u.from != nil:
		return decoderAt(ctx, u.kind, u.in, u.pool, *u.from)
	case u.start != nil:
		return u.decoderFrom(ctx)
	}
	d, err := unpacker(ctx, u.kind, u.in, u.pool, u.list != nil)
	if b, ok := d.(*batches); ok {
		b.points = u.list
	}
	return d, err
}

// unpacker makes the decoder of a whole file: in batches if restart points are wanted or several workers can help,
// else serial.
func unpacker(ctx context.Context, kind source.Kind, in *packed, pool *source.Pool, points bool) (io.ReadCloser, error) {
	if kind != source.TarXz && workers(kind, pool) < 2 && !points {
		return decoder(kind, in)
	}
	f, err := formatOf(kind, sizesFor(pool.Room()*pool.Size()), cap(pool.Help)+1)
	if f == nil || err != nil {
		return decoder(kind, in)
	}
	return inBatches(ctx, kind, in, f, pool), nil
}

// inBatches decodes a file in batches.
func inBatches(ctx context.Context, kind source.Kind, in *packed, f format, pool *source.Pool) *batches {
	d := newBatches(ctx, in, f, pool.Help)
	in.ahead = d.ahead
	if kind == source.TarXz {
		d.max = min(d.max, xzMost)
	}
	return d
}

// workers is how many workers decode a kind of file if all helpers of the pool are free.
func workers(kind source.Kind, pool *source.Pool) int {
	switch {
	case cap(pool.Help) < 2 || kind == source.TarBzip2:
		return 1
	case kind == source.TarXz:
		return min(cap(pool.Help), xzMost)
	}
	return cap(pool.Help)
}

// formatOf returns how a kind of file is cut into batches; nil if it cannot be, as bzip2.
func formatOf(kind source.Kind, s sizes, most int) (format, error) {
	switch kind {
	case source.TarGzip:
		return newGzip(s, most), nil
	case source.TarZstd:
		return newZstd(s, most)
	case source.TarXz:
		return newXz(s), nil
	}
	return nil, nil
}

// decoder makes the serial decoder of a kind of file, except of xz, which is always cut into blocks. It continues
// with concatenated members, frames and streams.
func decoder(kind source.Kind, in *packed) (d io.ReadCloser, err error) {
	defer func() {
		if bug := recover(); bug != nil { // as in fill
			err = fmt.Errorf("the decoder panicked: %v", bug)
		}
	}()
	if kind == source.TarZstd {
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(MaxWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	buf := bufio.NewReaderSize(in, 64<<10)
	in.ahead = buf.Buffered
	switch kind {
	case source.TarGzip:
		return io.NopCloser(&gunzip{in: buf}), nil
	case source.TarBzip2:
		return io.NopCloser(bzip2.NewReader(buf)), nil
	}
	return nil, fmt.Errorf("no decoder for %q: %w", kind, syscall.EINVAL)
}

// packed is the reader of the compressed bytes.
type packed struct {
	left  []byte        // the rest of cur, or of the head
	cur   *source.Piece // nil at the beginning
	from  *source.Region
	ahead func() int   // bytes that a decoder has read but not used; nil if unknown
	off   atomic.Int64 // bytes that were read
	err   error        // from the region
}

// Read implements io.Reader.
func (k *packed) Read(b []byte) (int, error) {
	for len(k.left) == 0 {
		if k.err != nil {
			return 0, k.err
		}
		k.release()
		k.cur, k.err = k.from.Next()
		if k.err == nil {
			k.left = k.cur.B
		}
	}
	n := copy(b, k.left)
	k.left = k.left[n:]
	k.off.Add(int64(n))
	return n, nil
}

func (k *packed) release() {
	if k.cur != nil {
		k.cur.Release()
	}
	k.cur, k.left = nil, nil
}

func (k *packed) offset() int64 { return k.off.Load() }

// explain converts an error of a decoder to the error of the stream: a failed read, the end, truncation, or damage.
// No decoder may be reading.
func (k *packed) explain(err error) error {
	if err == nil {
		return nil
	}
	ahead := 0
	if k.ahead != nil {
		ahead = k.ahead()
	}
	switch {
	case err == io.EOF && k.err == io.EOF && len(k.left)+ahead == 0:
		return err
	case k.err != nil && k.err != io.EOF:
		return k.err
	}
	if _, ok := err.(*DamageError); ok {
		return err
	}
	off := k.offset() - int64(ahead)
	cut := k.err == io.EOF && ahead == 0 && (errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF))
	return &DamageError{Off: off, Err: err, Cut: cut}
}
