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

// xzs cuts a file of xz into the blocks of its streams, each of which can be unpacked without those before it. Where one
// ends its chunks say, whose headers tell their lengths; whether they, and the index that follows all blocks of
// a stream, say the same is compared.
type xzs struct {
	sizes
	at     xzState    // of what cut has not cut yet
	blocks []xzRecord // of the stream, that were unpacked
}

// xzState is what is known between two parts of a file of xz.
type xzState struct {
	began  bool // it is not the file's beginning
	in     bool // a stream: a block follows, or the end of the stream
	middle bool // nobody knows what blocks it has had
	check  byte // how its blocks are summed up
	n      int  // blocks that it has had
}

// xzPart is what a batch is: a block, or what is around blocks.
type xzPart struct {
	at    xzState  // before it
	block xzHeader // its length is 0 where it is no block
	end   int      // where the chunks of a block end in raw
	tail  bool     // it is the end of a stream
}

// xzRecord is what the index has of a block.
type xzRecord struct{ packed, unpacked int64 }

const (
	xzMagic     = "\xfd7zXZ\x00"
	xzHead      = 12      // the length of what a stream begins with
	xzMost      = 5       // that are unpacked at once: blocks are of 24 MiB if nobody says how large, each of which is kept packed and unpacked
	xzWindow    = 8 << 20 // that is remembered also if less is asked for, as the library does
	xzBlockMost = 4 << 20 // a stream has no more: what is known of each, and the index of all, are kept
)

// newXzs is for batches of sizes, but larger: one is a whole block.
func newXzs(s sizes) *xzs {
	s.in, s.out = 3*s.in, 2*s.out
	return &xzs{sizes: s}
}

// xzsAt begins at a restart point. Its reader wants the first bytes soon, not a whole block at once.
func xzsAt(p RestartPoint) *xzs {
	_, check := p.xz()
	return &xzs{at: xzState{began: true, in: true, middle: true, check: check}}
}

// cut implements format.
func (z *xzs) cut(f *feed, b *batch) error {
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

// cutHead is the length of a stream's beginning, or of what fills up between two.
func (z *xzs) cutHead(f *feed) (int, error) {
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

// cutBlock is the length of a block.
func (z *xzs) cutBlock(f *feed, b *batch) (int, error) {
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
	_, sum, _ := xzSum(z.at.check) // was looked at
	n := padded(end) + sum
	if end == 0 || n > z.in || !f.need(n) {
		return 0, errSerial
	}
	b.xz.block, b.xz.end, b.hint = h, end, size
	z.at.n++
	return n, nil
}

// chunks is where the chunks of a block end, and what they unpack to; 0 is that this is too large, or cannot be told.
func (z *xzs) chunks(f *feed, at int) (end, size int) {
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

// cutTail is the length of a stream's end: its index, and its footer.
func (z *xzs) cutTail(f *feed, b *batch) (int, error) {
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

// padded is n with what fills it up.
func padded(n int) int { return (n + 3) &^ 3 }

// decode implements format.
func (z *xzs) decode(ctx context.Context, b *batch) error {
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
func (z *xzs) accept(b *batch) error {
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

// unpacked takes note of a block for the index.
func (z *xzs) unpacked(h *xzHeader, check byte, n xzRecord) {
	_, sum, _ := xzSum(check) // was looked at
	z.blocks = append(z.blocks, xzRecord{n.packed + int64(h.length+sum), n.unpacked})
}

// xzTail compares the end of a stream with what was in it.
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
		v, n := binary.Uvarint(index) // which cutTail has seen
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
func (z *xzs) restartAt(off int64, b *batch) (int64, bool) {
	if b == nil {
		return xzAt(off, z.at.check), true
	}
	return xzAt(off, b.xz.at.check), b.xz.block.length > 0
}

// hash of nothing.
type noSum struct{ hash.Hash }

func (noSum) Write(p []byte) (int, error) { return len(p), nil }
func (noSum) Sum(b []byte) []byte         { return b }
