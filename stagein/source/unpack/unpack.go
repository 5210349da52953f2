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

// MaxWindow is the most memory that a compressed tar may want its reader to
// remember, in bytes; it is what the zstd program takes unasked.
const MaxWindow = 128 << 20

// DamageError says where a compressed archive cannot be read any further.
type DamageError struct {
	Off int64 // in the compressed file; what is wrong lies there or a little before
	Err error // what the decoder says
	Cut bool  // the file ended
}

// Error implements error.
func (e *DamageError) Error() string {
	if e.Cut {
		return fmt.Sprintf("ends at compressed offset %d in the middle of its data: it is truncated: copy it again", e.Off)
	}
	return fmt.Sprintf("cannot be unpacked at compressed offset %d (%v): it is damaged, or something follows its end", e.Off, e.Err)
}

// Unwrap makes it an EBADMSG.
func (e *DamageError) Unwrap() error { return syscall.EBADMSG }

// Unpacked is what is in a compressed tar, as consecutive pieces of a pool.
// They are unpacked ahead of whoever takes them.
type Unpacked struct {
	kind   source.Kind
	pool   *source.Pool
	in     *packed
	cancel context.CancelFunc
	wg     sync.WaitGroup
	queue  chan *source.Piece // closed at the end
	err    error              // why it ended; set before queue is closed
	list   *pointList         // collects restart points; nil: none are wanted
	from   *RestartPoint      // of a stretch; nil: the file is unpacked to its end
	start  *RestartPoint      // from which it is unpacked to its end; nil: the beginning
}

// unpackAhead is how many pieces wait to be taken: while one is stored the
// next are unpacked, and the pool bounds them all.
const unpackAhead = 4

// Unpack begins to unpack head and what from reads, which it closes. All pieces
// but the last are whole buffers. Close must be called.
func Unpack(ctx context.Context, kind source.Kind, head []byte, from *source.Region, pool *source.Pool) *Unpacked {
	return unpack(ctx, kind, head, from, pool, nil)
}

func unpack(ctx context.Context, kind source.Kind, head []byte, from *source.Region, pool *source.Pool, list *pointList) *Unpacked {
	ctx, cancel := context.WithCancel(ctx)
	u := &Unpacked{kind: kind, pool: pool, cancel: cancel, queue: make(chan *source.Piece, unpackAhead), list: list}
	u.in = &packed{left: head, from: from}
	u.begin(ctx)
	return u
}

func (u *Unpacked) begin(ctx context.Context) {
	u.wg.Add(1)
	go u.run(ctx)
}

// Next returns the next piece, which the caller releases; io.EOF at the end,
// when the whole file has been read and its checksums were right.
func (u *Unpacked) Next() (*source.Piece, error) {
	if p, ok := <-u.queue; ok {
		u.Restart(p.Off) // no earlier one is wanted any more
		return p, nil
	}
	return nil, u.err
}

// Offset is how far the compressed file has been unpacked, in bytes.
func (u *Unpacked) Offset() int64 { return u.in.offset() }

// Workers is how many parts of the file can be unpacked at once, if no other
// archive's are.
func (u *Unpacked) Workers() int { return workers(u.kind, u.pool) }

// Close stops unpacking and waits until nothing is under way.
func (u *Unpacked) Close() {
	u.cancel()
	u.in.from.Close()
	for p := range u.queue {
		p.Release()
	}
	u.wg.Wait()
}

func (u *Unpacked) run(ctx context.Context) {
	defer u.wg.Done()
	defer close(u.queue)
	defer u.in.release()
	d, err := u.decoder(ctx)
	if err != nil {
		u.err = u.in.explain(err)
		return
	}
	defer d.Close() // keeps goroutines until then; it has no error of its own
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
			p.B = p.B[:len(p.B)/source.BlockSize*source.BlockSize] // what is short would look like the end
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

// maxNothing is how often a decoder may give no byte and no error in a row.
const maxNothing = 1000

// fillFrom fills the piece.
func fillFrom(p *source.Piece, r io.Reader) error {
	n, err := fill(p.Rest(), r)
	p.Extend(n)
	return err
}

// fill fills b. It is what r said, if r ended before: io.ReadFull would not tell
// an end from a truncated stream.
func fill(b []byte, r io.Reader) (n int, err error) {
	defer func() {
		// A decoder that is not ours; its bug must not end the job's daemon.
		if bug := recover(); bug != nil {
			err = fmt.Errorf("the decoder gave up: %v", bug)
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

// decoder makes the reader of what is packed in the file.
func (u *Unpacked) decoder(ctx context.Context) (io.ReadCloser, error) {
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

// unpacker makes the reader of what is packed in a kind of file: by several
// workers, if the format allows it and there is more than one; or in batches, if restart points are wanted.
func unpacker(ctx context.Context, kind source.Kind, in *packed, pool *source.Pool, points bool) (io.ReadCloser, error) {
	if kind != source.TarXz && workers(kind, pool) < 2 && !points {
		return decoder(kind, in)
	}
	f, err := formatOf(kind, sizesFor(pool.Room()*pool.Size()), cap(pool.Help)+1)
	if f == nil || err != nil {
		return decoder(kind, in)
	}
	return inParts(ctx, kind, in, f, pool), nil
}

// inParts unpacks what a format cuts.
func inParts(ctx context.Context, kind source.Kind, in *packed, f format, pool *source.Pool) *batches {
	d := newBatches(ctx, in, f, pool.Help)
	in.ahead = d.ahead
	if kind == source.TarXz {
		d.most = min(d.most, xzMost)
	}
	return d
}

// workers is how many unpack a kind of file, with all the helpers of a pool.
func workers(kind source.Kind, pool *source.Pool) int {
	switch {
	case cap(pool.Help) < 2 || kind == source.TarBzip2:
		return 1
	case kind == source.TarXz:
		return min(cap(pool.Help), xzMost)
	}
	return cap(pool.Help)
}

// formatOf says how a kind of file falls into batches; nil is that it does not, as of bzip2.
func formatOf(kind source.Kind, s sizes, most int) (format, error) {
	switch kind {
	case source.TarGzip:
		return newGzips(s, most), nil
	case source.TarZstd:
		return newZstds(s, most)
	case source.TarXz:
		return newXzs(s), nil
	}
	return nil, nil
}

// decoder makes the usual reader of what is packed in a kind of file, but of xz, which is always cut into its blocks. All
// of them go on with what follows an end, as gzip, zstd and bzip2 themselves do.
func decoder(kind source.Kind, in *packed) (d io.ReadCloser, err error) {
	defer func() {
		if bug := recover(); bug != nil { // as in fillFrom
			err = fmt.Errorf("the decoder gave up: %v", bug)
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

// packed is the compressed bytes.
type packed struct {
	left  []byte        // of cur, or of the head
	cur   *source.Piece // nil at the start
	from  *source.Region
	ahead func() int   // how many bytes were given out and not used; nil is not known
	off   atomic.Int64 // given out
	err   error        // of from
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

// explain says what err, which a decoder returned, comes from. It is called
// when no decoder reads.
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
