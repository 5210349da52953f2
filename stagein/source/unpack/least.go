package unpack

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// Fewest is what an archive unpacks to at the least.
type Fewest struct {
	Bytes int64
	By    string // what says so
	// Alone says that all of that is one piece, in whose middle nothing can be begun with.
	// Of gzip that is never so.
	Alone bool
	// Piece is how large the largest such piece is, if that is said: of xz.
	Piece int64
	// Modulo says that it may be many times 4 GiB more, as nothing says how often.
	Modulo bool
}

// Least is the fewest bytes that an archive of size bytes unpacks to, if it is
// whole, as far as a few small reads tell; head is its first block. What it
// returns is less than the truth where a format does not say it:
//
//	xz     exact: the indexes at the ends of its streams; of very many, the last ones
//	zstd   exact if there is a seek table; else what its frames say, one after the other, the
//	       first walkReads blocks of them: nothing if pzstd has written them, or zstd in a pipe
//	gzip   what the last member says, which is the truth modulo 4 GiB of that member
//	       alone: of BGZF, whose last one is empty, nothing (but see LeastBGZF)
//	bzip2  nothing
//
// and then the packed size: no program in use makes a tar larger than stretch of it.
func Least(f io.ReaderAt, kind source.Kind, size int64, head []byte) (Fewest, error) {
	var n Fewest
	var err error
	switch r := (&tail{f: f, size: size}); kind {
	case source.TarXz:
		n, err = leastXz(r)
	case source.TarZstd:
		n, err = leastZstd(r, head)
	case source.TarGzip:
		if IsBGZF(head) {
			break // if the last one is not empty, something is wrong with it
		}
		n.By = "its last member"
		n.Bytes, err = leastGzip(r)
	}
	if packed := size - size/stretch; n.Bytes <= packed {
		n = Fewest{Bytes: packed, By: "its packed size", Alone: kind == source.TarXz && n.Alone, Piece: n.Piece}
	}
	n.Modulo = kind == source.TarGzip && size >= wraps && !IsBGZF(head)
	return n, err
}

// wraps is the bytes of a gzip that may unpack to 4 GiB, of which the last member says nothing: few things pack better.
const wraps = 4 << 30 / 8

// stretch is of what part packing can make a thing larger: bzip2, the worst, a hundredth.
const stretch = 32

// tail reads a file from behind.
type tail struct {
	f    io.ReaderAt
	size int64
}

// maxTail is the most that is read at once, and enough for the index of 100,000 blocks.
const maxTail = 1 << 20

// before reads n bytes before end; nil is that there are not so many, or too many.
func (t *tail) before(end, n int64) ([]byte, error) {
	if n < 0 || n > maxTail || n > end || end > t.size {
		return nil, nil
	}
	b := make([]byte, n)
	return b, source.ReadFull(t.f, "end of the archive", b, end-n)
}

const (
	xzFooter  = 12
	xzStreams = 64 // of which the index is read
	xzPadding = 4  // what may follow a stream: zeros, so many at a time
)

// leastXz adds up the indexes of a file of xz, from its end on. If not even one is there to be read, it
// is taken for one piece.
func leastXz(t *tail) (Fewest, error) {
	sum, end := Fewest{By: "its index", Alone: true}, t.size
	blocks := 0
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
			return sum, nil // damaged, which is for the decoder to say
		}
		index, err := t.before(end-xzFooter, (int64(binary.LittleEndian.Uint32(foot[4:]))+1)*4)
		if err == nil && index == nil && sum.Bytes == 0 {
			sum.Alone = false // it has very many
		}
		if err != nil || index == nil {
			return sum, err
		}
		s, ok := xzIndex(index)
		if !ok || s.unpacked > math.MaxInt64/2-sum.Bytes {
			return sum, nil
		}
		blocks += s.blocks
		sum.Bytes, sum.Alone, sum.Piece = sum.Bytes+s.unpacked, blocks < 2, max(sum.Piece, s.largest)
		end -= xzFooter + int64(len(index)) + s.packed + xzFooter // a header is as long as a footer
	}
	sum.Alone = false // there may be more
	return sum, nil
}

// xzStream is how long the blocks of a stream are, and what they unpack to.
type xzStream struct {
	blocks           int
	packed, unpacked int64
	largest          int64 // unpacked
}

func xzIndex(b []byte) (s xzStream, ok bool) {
	at := len(b) - crc32.Size
	if at < 1 || b[0] != 0 || crc32.ChecksumIEEE(b[:at]) != binary.LittleEndian.Uint32(b[at:]) {
		return s, false
	}
	b = b[1:at]
	records, n := binary.Uvarint(b)
	for ; n > 0 && records > 0; records-- {
		b = b[n:]
		in, i := binary.Uvarint(b)
		out, o := binary.Uvarint(b[max(i, 0):])
		if i <= 0 || o <= 0 || in > math.MaxInt64/4-uint64(s.packed) || out > math.MaxInt64/4-uint64(s.unpacked) {
			return s, false
		}
		s.packed, s.unpacked, n = s.packed+int64(in+3)&^3, s.unpacked+int64(out), i+o
		s.blocks, s.largest = s.blocks+1, max(s.largest, int64(out))
	}
	return s, n > 0
}

// deflated is the most that a byte of gzip unpacks to.
const deflated = 1032

// leastGzip is what the last member says of its size, if that can be.
func leastGzip(t *tail) (int64, error) {
	b, err := t.before(t.size, gzipTail)
	n := int64(memberSize(b))
	if n/deflated > t.size {
		n = 0 // there is something else
	}
	return n, err
}
