package unpack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"

	"github.com/klauspost/compress/gzip"
)

// gzipFormat cuts a gzip file into batches of members. Nothing before a member says where it begins, except the
// unverified sizes of BGZF. So cut speculates on whatever looks like a header.
type gzipFormat struct {
	sizes
	readers chan *gunzip // idle decoders
	wrong   int          // failed speculations
}

// maxWrong is how many failed speculations disable cutting: the data contains headers, for example of compressed
// files that were stored.
const maxWrong = 3

// gzipHead is the size of a header without optional fields, gzipTail that of the checksum and size behind the data.
const gzipHead, gzipTail = 10, 8

func newGzip(s sizes, most int) *gzipFormat {
	return &gzipFormat{sizes: s, readers: make(chan *gunzip, most)}
}

// cut implements format.
func (z *gzipFormat) cut(f *feed, b *batch) error {
	if !f.need(1) {
		return f.err
	}
	if z.wrong >= maxWrong {
		return errSerial
	}
	n := 0 // size of the batch
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

// next is where the member at n seems to end; -1 if it exceeds a batch.
func (z *gzipFormat) next(f *feed, n int) int {
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

// findHeader finds what looks like a member's header; -1 if there is none.
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

// memberSize is the unpacked size stated at the end of b.
func memberSize(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.LittleEndian.Uint32(b[len(b)-4:])
}

// decode implements format.
func (z *gzipFormat) decode(ctx context.Context, b *batch) error {
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
func (z *gzipFormat) accept(*batch) error { return nil }

// serial implements format: it decodes one member, or everything after too many failed speculations.
func (z *gzipFormat) serial(f *feed, rejected *batch) (io.Reader, error) {
	if rejected != nil {
		z.wrong++
	}
	buf := bufio.NewReaderSize(f, feedStep)
	return &gzipMember{Reader: buf, z: gunzip{in: buf, one: z.wrong < maxWrong}, feed: f}, nil
}

// gzipMember decodes a member and leaves in the feed what follows.
type gzipMember struct {
	*bufio.Reader
	z    gunzip
	feed *feed
}

// Read implements io.Reader.
func (m *gzipMember) Read(p []byte) (int, error) {
	n, err := m.z.Read(p)
	if err == io.EOF {
		rest, _ := m.Peek(m.Buffered()) // they are buffered
		m.feed.giveBack(rest)
	}
	return n, err
}

// byteSource is a reader on which gzip needs no buffer of its own.
type byteSource interface {
	io.Reader
	io.ByteScanner
}

// gunzip decodes member after member. Unlike gzip.Reader it reports a file that ends within the name in a header.
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

// begin starts the next member; io.EOF if there is none.
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
