package unpack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"

	"github.com/klauspost/compress/gzip"
)

// gzips cuts a file of gzip into batches of members. Where one begins is told by
// nothing before it (but BGZF's sizes, which need not be believed): what looks
// like its header is taken for one.
type gzips struct {
	sizes
	readers chan *gunzip // that nobody uses
	wrong   int          // guesses
}

// maxWrong is how many wrong guesses are enough: there are headers in the data,
// as of compressed files that were not compressed again.
const maxWrong = 3

// gzipHead is the length of a header with nothing optional, gzipTail of what
// follows the data: its checksum and its size.
const gzipHead, gzipTail = 10, 8

func newGzips(s sizes, most int) *gzips {
	return &gzips{sizes: s, readers: make(chan *gunzip, most)}
}

// cut implements format.
func (z *gzips) cut(f *feed, b *batch) error {
	if !f.need(1) {
		return f.err
	}
	if z.wrong >= maxWrong {
		return errSerial
	}
	n := 0 // bytes of the batch
	for {
		at := z.next(f, n)
		if at < 0 {
			break // too large
		}
		size := int64(b.hint) + int64(memberSize(f.b[:at]))
		if n > 0 && size > int64(z.out) {
			break
		}
		n, b.hint = at, int(min(size, int64(z.out)+1))
		if n == len(f.b) || n >= z.raw || b.hint >= z.full {
			break
		}
	}
	if n == 0 || b.hint > z.out {
		return errSerial
	}
	b.raw = append(b.raw, f.b[:n]...)
	f.take(n)
	return nil
}

// next is where the member at n seems to end; -1 is beyond what a batch takes.
func (z *gzips) next(f *feed, n int) int {
	for at := n + gzipHead + gzipTail; ; {
		if f.need(min(at, z.in) + min(feedStep, z.raw)); at < len(f.b) {
			if i := findHeader(f.b[at:]); i >= 0 {
				return at + i
			}
		}
		switch {
		case f.err != nil && len(f.b) <= z.in:
			return len(f.b)
		case len(f.b) >= z.in:
			return -1
		}
		at = max(at, len(f.b)-gzipHead+1)
	}
}

var gzipMagic = []byte{0x1f, 0x8b, 8}

// findHeader finds what looks like a member's header, as programs write it; -1
// is nowhere.
func findHeader(b []byte) int {
	for at := 0; ; at++ {
		i := bytes.Index(b[at:], gzipMagic)
		if at += i; i < 0 || at+gzipHead > len(b) {
			return -1
		}
		flags, level, system := b[at+3], b[at+8], b[at+9]
		if flags < 0x20 && (level == 0 || level == 2 || level == 4) && (system <= 13 || system == 255) {
			return at
		}
	}
}

// memberSize is what the member that b ends with says it unpacks to.
func memberSize(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.LittleEndian.Uint32(b[len(b)-4:])
}

// decode implements format.
func (z *gzips) decode(ctx context.Context, b *batch) error {
	var r *gunzip
	select {
	case r = <-z.readers:
	default:
		r = new(gunzip)
	}
	r.in = bytes.NewReader(b.raw)
	if err := b.read(ctx, r, z.out); err != nil {
		return err
	}
	if b.rest != nil {
		return nil
	}
	select {
	case z.readers <- r:
	default:
	}
	return nil
}

// accept implements format.
func (z *gzips) accept(*batch) error { return nil }

// serial implements format: it unpacks one member, or all when too many guesses
// were wrong.
func (z *gzips) serial(f *feed, rejected *batch) (io.Reader, error) {
	if rejected != nil {
		z.wrong++
	}
	buf := bufio.NewReaderSize(f, feedStep)
	return &gzipMember{Reader: buf, z: gunzip{in: buf, one: z.wrong < maxWrong}, feed: f}, nil
}

// gzipMember unpacks a member and leaves what follows in the feed.
type gzipMember struct {
	*bufio.Reader
	z    gunzip
	feed *feed
}

// Read implements io.Reader.
func (m *gzipMember) Read(p []byte) (int, error) {
	n, err := m.z.Read(p)
	if err == io.EOF {
		rest, _ := m.Peek(m.Buffered()) // they are there
		m.feed.giveBack(rest)
	}
	return n, err
}

// byteSource is what gzip reads from without a buffer of its own.
type byteSource interface {
	io.Reader
	io.ByteScanner
}

// gunzip unpacks members, each by itself: gzip.Reader takes an end in the name
// of the next one for the end of all.
type gunzip struct {
	in    byteSource
	z     gzip.Reader
	inOne bool
	one   bool // stop after one
}

// Read implements io.Reader.
func (g *gunzip) Read(p []byte) (n int, err error) {
	for n == 0 && err == nil && len(p) > 0 {
		if !g.inOne {
			if err := g.begin(); err != nil {
				return 0, err
			}
		}
		if n, err = g.z.Read(p); err == io.EOF {
			if g.inOne = false; !g.one {
				err = nil
			}
		}
	}
	return n, err
}

// begin goes to the next member; io.EOF is that there is none.
func (g *gunzip) begin() error {
	if _, err := g.in.ReadByte(); err != nil {
		return err
	}
	if err := g.in.UnreadByte(); err != nil {
		return err
	}
	err := g.z.Reset(g.in)
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	g.z.Multistream(false)
	g.inOne = true
	return err
}
