package source

import (
	"bytes"
	"compress/bzip2"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
)

// bzip2s cuts a file of bzip2 into its blocks, which begin with a mark of 48 bits at
// any bit. Each is unpacked as a stream that has nothing else. A mark can be in
// the middle of a block, by chance or on purpose; then the block cannot be
// unpacked, and is tried again up to the next mark.
type bzip2s struct {
	sizes
	at     bzPlace
	crc    uint32 // of the blocks of this stream so far
	middle bool   // the first of them was not the stream's first
}

// bzPlace is where something begins that cut has not cut yet.
type bzPlace struct {
	bit   int  // of the feed
	level byte // of the stream, '1' to '9'; 0 is that it begins here
	past  int  // the block does not end before this bit
}

// bzBlock is what a batch is: a block, or the end of a stream.
type bzBlock struct {
	place bzPlace // where cut found it
	level byte
	from  int    // bit of raw
	end   int    // bit of raw after it
	crc   uint32 // of the block, or of all blocks of the stream
	last  bool   // it is the end
	open  bool   // nothing was found that follows
}

const (
	bzBlockMark = 0x314159265359
	bzEndMark   = 0x177245385090
	bzMark      = 48 // bits of a mark
	bzCRC       = 32
	bzEnd       = "\x17\x72\x45\x38\x50\x90" // the same as bytes
)

var errBzip2 = errors.New("bzip2: neither a stream nor a block begins here")

// bzLongest is more bytes than a block of a level can have: of 900,000 symbols each
// takes up to 20 bits.
func bzLongest(level byte) int { return int(level-'0')*250_000 + 128<<10 }

// cut implements format.
func (z *bzip2s) cut(f *feed, b *batch) error {
	k := bzBlock{place: z.at, level: z.at.level, from: z.at.bit}
	if k.level == 0 {
		if !f.need(1) {
			return f.err
		}
		if !f.need(4) {
			return f.short()
		}
		if k.level = f.b[3]; string(f.b[:3]) != "BZh" || k.level < '1' || k.level > '9' {
			return errBzip2
		}
		k.from = 32
	}
	if !f.need((k.from + bzMark + bzCRC + 7) / 8) {
		return f.short()
	}
	k.crc = uint32(bitsAt(f.b, k.from+bzMark, bzCRC))
	switch bitsAt(f.b, k.from, bzMark) {
	case bzEndMark:
		k.last = true
		k.end = (k.from + bzMark + bzCRC + 7) &^ 7
		z.at = bzPlace{}
	case bzBlockMark:
		b.hint = int(k.level-'0') * 100_000
		k.end = z.next(f, max(k.from+bzMark+bzCRC, k.place.past), bzLongest(k.level))
		if k.open = k.end < 0; k.open {
			k.end = 8 * min(len(f.b), bzLongest(k.level))
		}
		z.at = bzPlace{bit: k.end % 8, level: k.level}
	default:
		return errBzip2
	}
	b.block = k
	b.raw = append(b.raw, f.b[:(k.end+7)/8]...)
	f.take(k.end / 8)
	return nil
}

// next is the first bit from one on where a mark is; -1 is none in most bytes.
func (z *bzip2s) next(f *feed, bit, most int) int {
	for {
		f.need(min(bit/8+feedStep, most))
		b := f.b[:min(len(f.b), most)]
		if at := findMark(b, bit); at >= 0 {
			return at
		}
		if f.err != nil || len(b) == most {
			return -1
		}
		bit = max(bit, 8*(len(b)-bzMark/8))
	}
}

// bzHints is in which ways a byte can be the third that a mark touches: bit s
// for the mark of a block that begins at bit s of the first, 8+s for that of an end.
var bzHints = func() (h [256]uint16) {
	for s := range 8 {
		h[bzBlockMark>>(24+s)&0xff] |= 1 << s
		h[bzEndMark>>(24+s)&0xff] |= 1 << (8 + s)
	}
	return h
}()

// findMark finds the first mark in b from a bit on; -1 is none.
func findMark(b []byte, bit int) int {
	for i := bit/8 + 2; i < len(b); i++ {
		h := bzHints[b[i]]
		if h == 0 {
			continue
		}
		for s := range 8 {
			at := 8*(i-2) + s
			if h>>s&0x101 == 0 || at < bit || at+bzMark > 8*len(b) {
				continue
			}
			if v := bitsAt(b, at, bzMark); v == bzBlockMark || v == bzEndMark {
				return at
			}
		}
	}
	return -1
}

// bitsAt is n bits of b, at most 48, from a bit on.
func bitsAt(b []byte, bit, n int) (v uint64) {
	first, last := bit/8, (bit+n+7)/8
	for _, c := range b[first:last] {
		v = v<<8 | uint64(c)
	}
	return v >> (8*last - bit - n) & (1<<n - 1)
}

// decode implements format.
func (z *bzip2s) decode(ctx context.Context, b *batch) error {
	if b.block.last {
		return nil
	}
	return b.read(ctx, bzip2.NewReader(bytes.NewReader(b.block.alone(b.raw))), z.out)
}

// alone makes a stream of a block.
func (k *bzBlock) alone(raw []byte) []byte {
	out := append(make([]byte, 0, len(raw)+16), 'B', 'Z', 'h', k.level)
	bit := k.from
	for ; bit+8 <= k.end; bit += 8 {
		c := raw[bit/8] << (bit % 8)
		if bit%8 > 0 {
			c |= raw[bit/8+1] >> (8 - bit%8)
		}
		out = append(out, c)
	}
	if k.open {
		return out
	}
	n := k.end - bit // bits that are left
	left := byte(bitsAt(raw, bit, n))
	for _, c := range binary.BigEndian.AppendUint32([]byte(bzEnd), k.crc) {
		out = append(out, left<<(8-n)|c>>n)
		left = c
	}
	if n > 0 {
		out = append(out, left<<(8-n))
	}
	return out
}

// place implements placer.
func (z *bzip2s) place(off int64, b *batch) (int64, uint32, bool) {
	if b == nil {
		return 0, 0, false // there is no usual way for a block
	}
	k := &b.block
	return bzAt(off*8+int64(k.from), k.level), z.crc, !k.last
}

// accept implements format.
func (z *bzip2s) accept(b *batch) error {
	k := &b.block
	if !k.last {
		z.crc = bits.RotateLeft32(z.crc, 1) ^ k.crc
		return nil
	}
	if z.crc != k.crc && !z.middle {
		return &DamageError{Off: b.off + int64(len(b.raw)), Err: fmt.Errorf("bzip2: the checksum of its blocks is %08x, not %08x", z.crc, k.crc)}
	}
	z.crc, z.middle = 0, false
	return nil
}

// serial implements format: a block is tried again up to a later mark.
func (z *bzip2s) serial(f *feed, rejected *batch) (io.Reader, error) {
	k := &rejected.block
	if !k.open {
		z.at = k.place
		z.at.past = k.end + 1
		return nil, nil
	}
	cut := f.err == io.EOF && k.end == 8*len(f.b) && errors.Is(rejected.err, io.ErrUnexpectedEOF)
	if f.err != nil && f.err != io.EOF {
		return nil, f.err
	}
	off := rejected.off
	if cut {
		off += int64(len(f.b))
	}
	return nil, &DamageError{Off: off, Err: rejected.err, Cut: cut}
}
