package unpack

import (
	"context"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"
)

// zstdFormat cuts a zstd file into batches of frames, whose blocks say where they end.
type zstdFormat struct {
	sizes
	whole  *zstd.Decoder // for batches
	stream *zstd.Decoder // for large frames; nil until there is one
}

func newZstd(s sizes, most int) (*zstdFormat, error) {
	whole, err := zstd.NewReader(nil, zstd.WithDecoderMaxWindow(MaxWindow), zstd.WithDecoderConcurrency(most), zstd.WithDecodeAllCapLimit(true))
	return &zstdFormat{sizes: s, whole: whole}, err
}

// cut implements format.
func (z *zstdFormat) cut(f *feed, b *batch) error {
	if !f.need(1) {
		return f.err
	}
	n := 0
	for n < z.raw && b.hint < z.full && f.need(n+1) {
		frame, size := z.frame(f, n)
		if frame == 0 || n+frame > z.in || b.hint+size > z.out {
			break
		}
		n, b.hint = n+frame, b.hint+size
	}
	if n == 0 {
		return errSerial
	}
	b.raw = append(b.raw, f.b[:n]...)
	f.take(n)
	return nil
}

// frame is the size of the frame at n of the feed and its maximal unpacked size; 0 if it is too large, or not a
// frame.
func (z *zstdFormat) frame(f *feed, n int) (length, size int) {
	var h zstd.Header
	f.need(n + zstd.HeaderMaxSize)
	switch err := h.Decode(f.b[n:]); {
	case err != nil || h.HasFCS && h.FrameContentSize > uint64(z.out):
		return 0, 0
	case h.Skippable:
		length = h.HeaderSize + int(h.SkippableSize)
		if length > z.in || !f.need(n+length) {
			return 0, 0
		}
		return length, 0
	}
	for length = h.HeaderSize; ; {
		if !f.need(n + length + blockHead) {
			return 0, 0
		}
		b := blockOf(f.b[n+length:], h.HasCheckSum)
		length, size = length+b.length, size+b.size
		switch {
		case b.bad || length > z.in || size > z.out && !h.HasFCS:
			return 0, 0
		case !b.last:
			continue
		case !f.need(n + length):
			return 0, 0
		case h.HasFCS:
			size = int(h.FrameContentSize)
		}
		return length, size
	}
}

// blockHead is the size of a block header, maxBlock the limit of its unpacked size.
const blockHead, maxBlock = 3, 128 << 10

// zstdBlock is the header of a block.
type zstdBlock struct {
	length int // with the header, and with the frame's checksum behind the last block
	size   int // maximal unpacked size
	last   bool
	bad    bool
}

func blockOf(head []byte, checksum bool) zstdBlock {
	v := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	n := v >> 3
	b := zstdBlock{length: blockHead + n, size: n, last: v&1 != 0}
	switch v >> 1 & 3 {
	case 1: // a byte that is repeated n times
		b.length = blockHead + 1
	case 2:
		b.size = maxBlock
	case 3:
		b.bad = true
	}
	if b.last && checksum {
		b.length += 4
	}
	return b
}

// decode implements format.
func (z *zstdFormat) decode(_ context.Context, b *batch) (err error) {
	if cap(b.out) < b.hint {
		b.out = make([]byte, 0, b.hint)
	}
	b.out, err = z.whole.DecodeAll(b.raw, b.out[:0])
	return err
}

// accept implements format.
func (z *zstdFormat) accept(*batch) error { return nil }

// serial implements format: it decodes one frame, or everything after damage.
func (z *zstdFormat) serial(f *feed, rejected *batch) (io.Reader, error) {
	r := io.Reader(f)
	if rejected == nil {
		r = newFrame(f)
	}
	if z.stream != nil {
		return z.stream, z.stream.Reset(r)
	}
	var err error
	z.stream, err = zstd.NewReader(r, zstd.WithDecoderMaxWindow(MaxWindow))
	return z.stream, err
}

// Close implements io.Closer.
func (z *zstdFormat) Close() error {
	z.whole.Close()
	if z.stream != nil {
		z.stream.Close()
	}
	return nil
}

// frame reads the compressed bytes of one frame, or of the rest of the file if it is not a frame.
type frame struct {
	feed     *feed
	left     int // of the header, or of a block
	checksum bool
	last     bool // the last block
}

func newFrame(f *feed) *frame {
	var h zstd.Header
	f.need(zstd.HeaderMaxSize)
	switch err := h.Decode(f.b); {
	case err != nil:
		return &frame{feed: f, left: math.MaxInt, last: true}
	case h.Skippable:
		return &frame{feed: f, left: h.HeaderSize + int(h.SkippableSize), last: true}
	}
	return &frame{feed: f, left: h.HeaderSize, checksum: h.HasCheckSum}
}

// Read implements io.Reader.
func (r *frame) Read(p []byte) (int, error) {
	if r.left == 0 && !r.next() {
		return 0, io.EOF
	}
	n, err := r.feed.Read(p[:min(r.left, len(p))])
	r.left -= n
	return n, err
}

// next continues with the next block.
func (r *frame) next() bool {
	if r.last {
		return false
	}
	if !r.feed.need(blockHead) {
		r.left, r.last = math.MaxInt, true // the rest, and then the error
		return true
	}
	b := blockOf(r.feed.b, r.checksum)
	r.left, r.last = b.length, b.last
	if b.bad {
		r.left, r.last = math.MaxInt, true
	}
	return true
}
