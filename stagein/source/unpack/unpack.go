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
	"github.com/therootcompany/xz"

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
	err    error              // why the stream ended; set before queue is closed
}

// queueSize is how many decoded pieces may wait for the reader.
const queueSize = 4

// Open starts decoding head followed by from, which it closes. All pieces but the last are whole buffers. Close must be
// called.
func Open(ctx context.Context, kind source.Kind, head []byte, from *source.Region, pool *source.Pool) *Stream {
	ctx, cancel := context.WithCancel(ctx)
	u := &Stream{kind: kind, pool: pool, cancel: cancel, queue: make(chan *source.Piece, queueSize)}
	u.in = &packed{left: head, from: from}
	u.wg.Add(1)
	go u.run(ctx)
	return u
}

// Next returns the next piece, which the caller must release. At the end, once all checksums have been verified, it
// returns io.EOF.
func (u *Stream) Next() (*source.Piece, error) {
	if p, ok := <-u.queue; ok {
		return p, nil
	}
	return nil, u.err
}

// Offset returns how many bytes of the compressed file have been decoded.
func (u *Stream) Offset() int64 { return u.in.offset() }

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
	d, err := decoder(u.kind, u.in)
	if err != nil {
		u.err = u.in.explain(err)
		return
	}
	defer d.Close() // it runs goroutines until then, and returns no error of its own
	off := int64(0)
	for u.err == nil {
		p, err := u.pool.Get(ctx)
		if err != nil {
			u.err = err
			return
		}
		p.Off = off
		if u.err = u.in.explain(fillFrom(p, d)); u.err != nil && u.err != io.EOF {
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

// maxNothing bounds consecutive empty reads of a decoder.
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

// decoder returns the decoder for a kind of file. It continues with concatenated members, frames and streams.
func decoder(kind source.Kind, in *packed) (d io.ReadCloser, err error) {
	defer func() {
		if bug := recover(); bug != nil { // as in fill
			err = fmt.Errorf("the decoder panicked: %v", bug)
		}
	}()
	switch kind {
	case source.TarZstd:
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(MaxWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case source.TarXz:
		z, err := xz.NewReader(in, MaxWindow)
		return io.NopCloser(xzStream{z}), xzError(err)
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

// xzStream is the library's decoder with the usual error for a truncated file.
type xzStream struct{ *xz.Reader }

// Read implements io.Reader.
func (x xzStream) Read(p []byte) (int, error) {
	n, err := x.Reader.Read(p)
	return n, xzError(err)
}

func xzError(err error) error {
	if errors.Is(err, xz.ErrBuf) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// packed is the reader of the compressed bytes.
type packed struct {
	left  []byte        // the rest of cur, or of the head
	cur   *source.Piece // nil at the beginning
	from  *source.Region
	ahead func() int   // bytes that a decoder has read but not used; nil: unknown
	off   atomic.Int64 // bytes read
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
