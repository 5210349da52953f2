package unpack

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"slices"

	"github.com/ulikunitz/xz/lzma"
)

// xzHeader is the header of a block.
type xzHeader struct {
	length   int
	packed   int64 // of the chunks; -1 if not stated
	unpacked int64 // likewise
	window   int64 // size of the dictionary
}

// header parses the header of the block at the beginning of the feed.
func (z *xzFormat) header(f *feed) (xzHeader, error) {
	if !f.need(1) {
		return xzHeader{}, f.short()
	}
	n := (int(f.b[0]) + 1) * 4
	if !f.need(n) {
		return xzHeader{}, f.short()
	}
	return parseXzHeader(f.b[:n])
}

var errXzHeader = errors.New("xz: the header of a block is damaged")

func parseXzHeader(b []byte) (xzHeader, error) {
	h := xzHeader{length: len(b), packed: -1, unpacked: -1}
	end := len(b) - crc32.Size
	if end < 2 || crc32.ChecksumIEEE(b[:end]) != binary.LittleEndian.Uint32(b[end:]) || b[1]&0x3c != 0 {
		return h, errXzHeader
	}
	flags := b[1]
	b = b[2:end]
	for _, x := range []struct {
		flag byte
		to   *int64
	}{{0x40, &h.packed}, {0x80, &h.unpacked}} {
		if flags&x.flag == 0 {
			continue
		}
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<62 {
			return h, errXzHeader
		}
		*x.to, b = int64(v), b[n:]
	}
	switch {
	case flags&3 != 0 || len(b) < 3 || b[0] != 0x21:
		return h, errors.New("xz: uses filters, of which none is known: pack it without")
	case b[1] != 1 || !zeros(b[3:]):
		return h, errXzHeader
	case b[2] > 30: // 2^27 bytes
		return h, fmt.Errorf("its dictionary is larger than %d MiB", MaxWindow>>20)
	}
	h.window = int64(2|b[2]&1) << (b[2]/2 + 11)
	return h, nil
}

// memory is the dictionary size for a block of size unpacked bytes; -1 is unknown.
func (h *xzHeader) memory(size int64) int {
	n := max(h.window, xzWindow)
	if size >= 0 {
		n = max(min(n, size), lzma.MinDictCap)
	}
	return int(n)
}

// says reports whether the sizes that the header states, if any, are right.
func (h *xzHeader) says(is xzRecord) bool {
	return (h.packed < 0 || h.packed == is.packed) && (h.unpacked < 0 || h.unpacked == is.unpacked)
}

var errXzSize = errors.New("xz: a block has another size than it says")

// xzSum returns the checksum of a type, and its size.
func xzSum(check byte) (sum hash.Hash, n int, err error) {
	switch check {
	case 0:
		return noSum{}, 0, nil
	case 1:
		return crc32.NewIEEE(), crc32.Size, nil
	case 4:
		return crc64.New(crc64.MakeTable(crc64.ECMA)), crc64.Size, nil
	case 10:
		return sha256.New(), sha256.Size, nil
	}
	return nil, 0, fmt.Errorf("xz: checksums of an unknown kind, %d", check)
}

// xzEnds verifies the padding and the checksum behind the chunks of a block.
func xzEnds(sum hash.Hash, b []byte) error {
	want := sum.Sum(nil)
	if len(want) <= crc64.Size {
		slices.Reverse(want)
	}
	fill := len(b) - len(want)
	if !zeros(b[:fill]) || !bytes.Equal(b[fill:], want) {
		return errors.New("xz: the checksum of a block is not right")
	}
	return nil
}

// serial implements format: it decodes one block.
func (z *xzFormat) serial(f *feed, rejected *batch) (io.Reader, error) {
	if rejected != nil {
		z.at = rejected.xz.at
		if rejected.xz.block.length == 0 {
			return nil, rejected.err
		}
	}
	h, err := z.header(f)
	if err != nil {
		return nil, err
	}
	sum, n, err := xzSum(z.at.check)
	if err != nil {
		return nil, err
	}
	f.take(h.length)
	r := &xzBlock{Reader: bufio.NewReaderSize(f, feedStep), z: z, feed: f, head: h, sum: sum, foot: n}
	r.chunks, err = lzma.Reader2Config{DictCap: h.memory(h.unpacked)}.NewReader2(countingReader{r})
	return r, err
}

// xzBlock decodes a block and leaves in the feed what follows.
type xzBlock struct {
	*bufio.Reader
	z      *xzFormat
	feed   *feed
	head   xzHeader
	chunks *lzma.Reader2
	read   xzRecord // sizes so far
	sum    hash.Hash
	foot   int // size of the checksum
}

// countingReader counts the compressed bytes of a block.
type countingReader struct{ r *xzBlock }

// Read implements io.Reader.
func (c countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Reader.Read(p)
	c.r.read.packed += int64(n)
	return n, err
}

// Read implements io.Reader.
func (r *xzBlock) Read(p []byte) (int, error) {
	n, err := r.chunks.Read(p)
	r.read.unpacked += int64(n)
	_, _ = r.sum.Write(p[:n]) // cannot fail
	if err == io.EOF {
		err = r.end()
	}
	return n, err
}

// end verifies what follows the chunks; io.EOF if it is valid.
func (r *xzBlock) end() error {
	if !r.chunks.EOS() {
		return io.ErrUnexpectedEOF
	}
	n := r.head.length + int(r.read.packed)
	foot := make([]byte, padded(n)-n+r.foot)
	_, err := io.ReadFull(r.Reader, foot)
	switch {
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case !r.head.says(r.read):
		return errXzSize
	}
	if err := xzEnds(r.sum, foot); err != nil {
		return err
	}
	r.z.at.n++
	r.z.unpacked(&r.head, r.z.at.check, r.read)
	rest, _ := r.Peek(r.Buffered()) // they are buffered
	r.feed.giveBack(rest)
	return io.EOF
}

// zeros reports whether all bytes of b are zero.
func zeros(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }
