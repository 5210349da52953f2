package unpack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"

	"github.com/ulikunitz/xz/lzma"
)

// xzFormat cuts an xz file into the blocks of its streams. The headers of the chunks in a block say where it ends.
// The index behind the blocks of a stream is compared with them.
type xzFormat struct {
	sizes
	at     xzState    // at the next part to be cut
	blocks []xzRecord // decoded blocks of the stream
}

// xzState is the state between two parts of an xz file.
type xzState struct {
	began  bool // not at the beginning of the file
	in     bool // within a stream: a block or the index follows
	middle bool // decoding began within the stream, so its earlier blocks are unknown
	check  byte // checksum type of the blocks
	n      int  // blocks so far
}

// xzPart is the content of a batch: a block, or what lies between blocks.
type xzPart struct {
	at    xzState  // state before it
	block xzHeader // length 0 if it is not a block
	end   int      // end of the chunks of the block in raw
	tail  bool     // the end of a stream
}

// xzRecord is the index record of a block.
type xzRecord struct{ packed, unpacked int64 }

const (
	xzMagic     = "\xfd7zXZ\x00"
	xzHead      = 12      // size of a stream header
	xzMost      = 5       // limit of concurrent blocks: they have 24 MiB by default, and are kept packed and unpacked
	xzWindow    = 8 << 20 // minimal dictionary, as in the library
	xzBlockMost = 4 << 20 // limit of blocks in a stream: their records and the index are kept in memory
)

// newXz makes a format with larger batches, because a batch is a whole block.
func newXz(s sizes) *xzFormat {
	s.in, s.out = 3*s.in, 2*s.out
	return &xzFormat{sizes: s}
}

// xzFrom starts at a restart point. It decodes serially, because its reader wants the first bytes soon.
func xzFrom(p RestartPoint) *xzFormat {
	_, check := p.xz()
	return &xzFormat{at: xzState{began: true, in: true, middle: true, check: check}}
}

// cut implements format.
func (z *xzFormat) cut(f *feed, b *batch) error {
	b.xz = xzPart{at: z.at}
	n, err := 0, error(nil)
	switch {
	case z.at.in && !f.need(1):
		return f.short()
	case z.at.in && f.b[0] == 0:
		n, err = z.cutTail(f, b)
	case z.at.in:
		n, err = z.cutBlock(f, b)
	default:
		n, err = z.cutHead(f)
	}
	if err != nil {
		return err
	}
	b.raw = append(b.raw, f.b[:n]...)
	f.take(n)
	return nil
}

// cutHead is the size of a stream header, or of the padding between two streams.
func (z *xzFormat) cutHead(f *feed) (int, error) {
	if !f.need(1) && z.at.began {
		return 0, f.err
	}
	if !f.need(xzPadding) {
		return 0, f.short()
	}
	n := 0
	for z.at.began && n+xzPadding <= len(f.b) && zeros(f.b[n:n+xzPadding]) {
		n += xzPadding
	}
	if n > 0 {
		return n, nil
	}
	if !f.need(xzHead) {
		return 0, f.short()
	}
	b := f.b[:xzHead]
	switch {
	case string(b[:6]) != xzMagic:
		return 0, errors.New("xz: no stream begins here")
	case crc32.ChecksumIEEE(b[6:8]) != binary.LittleEndian.Uint32(b[8:]) || b[6] != 0:
		return 0, errors.New("xz: the header of a stream is damaged")
	}
	if _, _, err := xzSum(b[7]); err != nil {
		return 0, err
	}
	z.at = xzState{began: true, in: true, check: b[7]}
	return xzHead, nil
}

// cutBlock is the size of a block.
func (z *xzFormat) cutBlock(f *feed, b *batch) (int, error) {
	h, err := z.header(f)
	if err != nil {
		return 0, err
	}
	if z.at.n == xzBlockMost {
		return 0, errXzMany
	}
	if h.packed > int64(z.in) || h.unpacked > int64(z.out) {
		return 0, errSerial
	}
	end, size := z.chunks(f, h.length)
	_, sum, _ := xzSum(z.at.check) // the type is valid
	n := padded(end) + sum
	if end == 0 || n > z.in || !f.need(n) {
		return 0, errSerial
	}
	b.xz.block, b.xz.end, b.hint = h, end, size
	z.at.n++
	return n, nil
}

// chunks is where the chunks of a block end, and their unpacked size; 0 if that is too large, or invalid.
func (z *xzFormat) chunks(f *feed, at int) (end, size int) {
	for at < z.in && size <= z.out && f.need(at+1) {
		kind, head := f.b[at], 3
		switch {
		case kind == 0:
			return at + 1, size
		case kind >= 0xc0:
			head = 6
		case kind >= 0x80:
			head = 5
		case kind > 2:
			return 0, 0
		}
		if !f.need(at + head) {
			break
		}
		b := f.b[at:]
		out := int(binary.BigEndian.Uint16(b[1:])) + 1
		in := out
		if kind >= 0x80 {
			out += int(kind&0x1f) << 16
			in = int(binary.BigEndian.Uint16(b[3:])) + 1
		}
		at, size = at+head+in, size+out
	}
	return 0, 0
}

// cutTail is the size of a stream's index and footer.
func (z *xzFormat) cutTail(f *feed, b *batch) (int, error) {
	at := 1
	next := func() (uint64, bool) {
		f.need(at + binary.MaxVarintLen64)
		v, n := binary.Uvarint(f.b[min(at, len(f.b)):])
		at += max(n, 0)
		return v, n > 0
	}
	count, ok := next()
	switch {
	case ok && !z.at.middle && count != uint64(z.at.n):
		return 0, fmt.Errorf("xz: the index is of %d blocks, there are %d", count, z.at.n)
	case ok && count > xzBlockMost:
		return 0, errXzMany
	}
	for i := uint64(0); ok && i < count; i++ {
		if _, ok = next(); ok {
			_, ok = next()
		}
	}
	at = padded(at) + crc32.Size + xzFooter
	if !f.need(at) {
		return 0, f.short()
	}
	if !ok {
		return 0, errXzIndex
	}
	b.xz.tail = true
	z.at = xzState{began: true}
	return at, nil
}

var (
	errXzIndex = errors.New("xz: the index is not of the blocks before it, or damaged")
	errXzMany  = fmt.Errorf("xz: a stream of more than %d blocks: pack it with a larger --block-size", xzBlockMost)
)

// padded is n rounded up to the alignment of xz.
func padded(n int) int { return (n + 3) &^ 3 }

// decode implements format.
func (z *xzFormat) decode(ctx context.Context, b *batch) error {
	h := &b.xz.block
	if h.length == 0 {
		return nil
	}
	in := bytes.NewReader(b.raw[h.length:b.xz.end])
	r, err := lzma.Reader2Config{DictCap: h.memory(int64(b.hint))}.NewReader2(in)
	if err != nil {
		return err
	}
	size := b.hint
	if err := b.read(ctx, r, size+1); err != nil {
		return err
	}
	if len(b.out) != size || in.Len() > 0 || !h.says(xzRecord{in.Size(), int64(size)}) {
		return errXzSize
	}
	sum, _, err := xzSum(b.xz.at.check)
	if err != nil {
		return err
	}
	_, _ = sum.Write(b.out) // cannot fail
	return xzEnds(sum, b.raw[b.xz.end:])
}

// accept implements format.
func (z *xzFormat) accept(b *batch) error {
	if h := &b.xz.block; h.length > 0 {
		z.unpacked(h, b.xz.at.check, xzRecord{int64(b.xz.end - h.length), int64(len(b.out))})
	}
	if !b.xz.tail {
		return nil
	}
	all := z.blocks
	z.blocks = z.blocks[:0]
	if err := xzTail(b.raw, &b.xz.at, all); err != nil {
		return &DamageError{Off: b.off, Err: err}
	}
	return nil
}

// unpacked records a block, to compare it with the index.
func (z *xzFormat) unpacked(h *xzHeader, check byte, n xzRecord) {
	_, sum, _ := xzSum(check) // the type is valid
	z.blocks = append(z.blocks, xzRecord{n.packed + int64(h.length+sum), n.unpacked})
}

// xzTail compares the index and the footer of a stream with its blocks.
func xzTail(b []byte, at *xzState, blocks []xzRecord) error {
	index, foot := b[:len(b)-xzFooter], b[len(b)-xzFooter:]
	end := len(index) - crc32.Size
	switch {
	case crc32.ChecksumIEEE(index[:end]) != binary.LittleEndian.Uint32(index[end:]):
		return errXzIndex
	case string(foot[10:]) != "YZ" || crc32.ChecksumIEEE(foot[4:10]) != binary.LittleEndian.Uint32(foot),
		foot[8] != 0 || foot[9] != at.check,
		(int64(binary.LittleEndian.Uint32(foot[4:]))+1)*4 != int64(len(index)):
		return errors.New("xz: the footer of a stream is damaged")
	}
	index = index[1:end]
	next := func() int64 {
		v, n := binary.Uvarint(index) // validated by cutTail
		index = index[n:]
		return int64(v)
	}
	for count := next(); count > 0 && !at.middle; count-- {
		r := xzRecord{next(), next()}
		if len(blocks) == 0 || r != blocks[0] {
			return errXzIndex
		}
		blocks = blocks[1:]
	}
	if !at.middle && !zeros(index) {
		return errXzIndex
	}
	return nil
}

// restartAt implements restarter.
func (z *xzFormat) restartAt(off int64, b *batch) (int64, bool) {
	if b == nil {
		return xzAt(off, z.at.check), true
	}
	return xzAt(off, b.xz.at.check), b.xz.block.length > 0
}

// noSum is the checksum of streams without checksums.
type noSum struct{ hash.Hash }

func (noSum) Write(p []byte) (int, error) { return len(p), nil }
func (noSum) Sum(b []byte) []byte         { return b }
