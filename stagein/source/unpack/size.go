package unpack

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// MinUnpacked is the minimal unpacked size of a compressed file of size bytes, as its format states it, and what states it. The first block of the file is head. It makes a few small reads:
//
//	xz     exact: the indexes at the ends of its streams; if there are very many, the last ones
//	zstd   exact if there is a seek table, else what the first frame states
//	gzip   what the last member states, which is the size modulo 4 GiB
//
// If that is less than the packed size, or nothing is stated, it is the packed size less what packing may add (stretch).
func MinUnpacked(f io.ReaderAt, kind source.Kind, size int64, head []byte) (bytes int64, by string, err error) {
	t := &tail{f: f, size: size}
	switch kind {
	case source.TarXz:
		by = "its index"
		bytes, err = minXz(t)
	case source.TarZstd:
		bytes, by, err = minZstd(t, head)
	case source.TarGzip:
		by = "its last member"
		bytes, err = minGzip(t)
	}
	if packed := size - size/stretch; bytes <= packed {
		bytes, by = packed, "its packed size"
	}
	return bytes, by, err
}

// stretch limits by which part packing can enlarge a tar. The worst is bzip2, with a hundredth.
const stretch = 32

// tail reads a file backwards.
type tail struct {
	f    io.ReaderAt
	size int64
}

// maxTail is the read limit, in bytes; it is enough for an index of 100,000 blocks.
const maxTail = 1 << 20

// before reads the n bytes before end; nil if the file has fewer, or n exceeds maxTail.
func (t *tail) before(end, n int64) ([]byte, error) {
	if n < 0 || n > maxTail || n > end || end > t.size {
		return nil, nil
	}
	b := make([]byte, n)
	return b, source.ReadFull(t.f, "end of the archive", b, end-n)
}

const (
	xzFooter  = 12
	xzStreams = 64 // limit of streams whose index is read
	xzPadding = 4  // unit of the zeros that may follow a stream
)

// minXz sums up the indexes of an xz file, from its end on.
func minXz(t *tail) (sum int64, err error) {
	end := t.size
	for range xzStreams {
		foot, err := t.before(end, xzFooter)
		if err != nil || foot == nil {
			return sum, err
		}
		if bytes.Equal(foot[xzFooter-xzPadding:], make([]byte, xzPadding)) {
			end -= xzPadding
			continue
		}
		if string(foot[10:]) != "YZ" || crc32.ChecksumIEEE(foot[4:10]) != binary.LittleEndian.Uint32(foot) {
			return sum, nil // damaged: the decoder reports it
		}
		index, err := t.before(end-xzFooter, (int64(binary.LittleEndian.Uint32(foot[4:]))+1)*4)
		if err != nil || index == nil {
			return sum, err
		}
		packed, unpacked, ok := xzIndex(index)
		if !ok || unpacked > math.MaxInt64/2-sum {
			return sum, nil
		}
		sum += unpacked
		end -= xzFooter + int64(len(index)) + packed + xzFooter // a header is as long as a footer
	}
	return sum, nil
}

// xzIndex sums up the packed and unpacked sizes in an index.
func xzIndex(b []byte) (packed, unpacked int64, ok bool) {
	at := len(b) - crc32.Size
	if at < 1 || b[0] != 0 || crc32.ChecksumIEEE(b[:at]) != binary.LittleEndian.Uint32(b[at:]) {
		return 0, 0, false
	}
	b = b[1:at]
	records, n := binary.Uvarint(b)
	for ; n > 0 && records > 0; records-- {
		b = b[n:]
		in, i := binary.Uvarint(b)
		out, o := binary.Uvarint(b[max(i, 0):])
		if i <= 0 || o <= 0 || in > math.MaxInt64/4-uint64(packed) || out > math.MaxInt64/4-uint64(unpacked) {
			return 0, 0, false
		}
		packed, unpacked, n = packed+int64(in+3)&^3, unpacked+int64(out), i+o
	}
	return packed, unpacked, n > 0
}

const (
	blockHead  = 3         // bytes of the header of a zstd block
	maxBlock   = 128 << 10 // its largest unpacked size
	seekFooter = 9
	seekMagic  = 0x8f92eab1
	seekSums   = 0x80 // in the descriptor: entries have checksums
	seekHead   = 8    // of the skippable frame of the table
	blockLeast = blockHead + 1
)

// minZstd is what the seek table states, or else the first frame.
func minZstd(t *tail, head []byte) (n int64, by string, err error) {
	foot, err := t.before(t.size, seekFooter)
	if err != nil {
		return 0, "", err
	}
	if foot != nil && binary.LittleEndian.Uint32(foot[5:]) == seekMagic {
		if sum, ok, err := seekTable(t, foot); ok || err != nil {
			return sum, "its seek table", err
		}
	}
	var h zstd.Header
	if h.Decode(head) != nil || !h.HasFCS || h.FrameContentSize/maxBlock > uint64(t.size)/blockLeast {
		return 0, "", nil // nothing is stated, or an impossible size
	}
	return int64(h.FrameContentSize), "its first frame", nil
}

// seekTable sums up the frames of a seek table; ok is false if they do not add up to the file.
func seekTable(t *tail, foot []byte) (sum int64, ok bool, err error) {
	entry := 8
	if foot[4]&seekSums != 0 {
		entry += 4
	}
	n := int64(entry)*int64(binary.LittleEndian.Uint32(foot)) + seekFooter
	table, err := t.before(t.size, n)
	if err != nil || table == nil {
		return 0, false, err
	}
	packed := n + seekHead
	for b := table[:n-seekFooter]; len(b) > 0; b = b[entry:] {
		packed += int64(binary.LittleEndian.Uint32(b))
		sum += int64(binary.LittleEndian.Uint32(b[4:]))
	}
	return sum, packed == t.size, nil
}

// deflated is the largest compression ratio of deflate.
const deflated = 1032

// gzipTail is the size of the checksum and the size behind the data of a member.
const gzipTail = 8

// minGzip is the size that the last member states, unless it is impossible.
func minGzip(t *tail) (int64, error) {
	b, err := t.before(t.size, gzipTail)
	if err != nil || b == nil {
		return 0, err
	}
	n := int64(binary.LittleEndian.Uint32(b[gzipTail-4:]))
	if n/deflated > t.size {
		n = 0 // those bytes are not a size
	}
	return n, nil
}
