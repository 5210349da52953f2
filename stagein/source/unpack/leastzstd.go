package unpack

import (
	"encoding/binary"
	"math"

	"github.com/klauspost/compress/zstd"
)

const (
	seekFooter = 9
	seekMagic  = 0x8f92eab1
	seekSums   = 0x80 // in the descriptor: entries have checksums
	seekHead   = 8    // of the skippable frame that the table is
)

// leastZstd is what the seek table says, or else the frames do.
func leastZstd(t *tail, head []byte) (Fewest, error) {
	foot, err := t.before(t.size, seekFooter)
	if err != nil {
		return Fewest{}, err
	}
	if foot != nil && binary.LittleEndian.Uint32(foot[5:]) == seekMagic {
		if sum, frames, ok, err := seekTable(t, foot); ok || err != nil {
			return Fewest{Bytes: sum, By: "its seek table", Alone: frames == 1}, err
		}
	}
	w := frameWalk{t: t, b: head}
	sum, err := w.frames()
	return Fewest{Bytes: sum, By: "the headers of its frames", Alone: w.count < 2}, err
}

// seekTable adds up and counts the frames of a seek table; it is none if they are not all
// of the file.
func seekTable(t *tail, foot []byte) (sum, frames int64, ok bool, err error) {
	entry := 8
	if foot[4]&seekSums != 0 {
		entry += 4
	}
	n := int64(entry)*int64(binary.LittleEndian.Uint32(foot)) + seekFooter
	table, err := t.before(t.size, n)
	if err != nil || table == nil {
		return 0, 0, false, err
	}
	packed := n + seekHead
	for b := table[:n-seekFooter]; len(b) > 0; b = b[entry:] {
		packed += int64(binary.LittleEndian.Uint32(b))
		sum, frames = sum+int64(binary.LittleEndian.Uint32(b[4:])), frames+1
	}
	return sum, frames, packed == t.size, nil
}

const (
	walkReads = 2048 // of which each may have to wait for the source
	walkRead  = 64   // bytes: the header of a frame and that of its first block, or those of small ones
)

// frameWalk goes from header to header of frames and their blocks.
type frameWalk struct {
	t     *tail
	at    int64  // of b in the file
	b     []byte // what was read last
	reads int
	count int // frames with data
}

// peek is the bytes of the file from at on, n at the least unless it ends before; nil is
// that enough was read.
func (w *frameWalk) peek(at, n int64) ([]byte, error) {
	n = min(n, w.t.size-at)
	if from := at - w.at; from >= 0 && from+n <= int64(len(w.b)) {
		return w.b[from:], nil
	}
	if w.reads == walkReads {
		return nil, nil
	}
	w.reads++
	n = min(walkRead, w.t.size-at)
	b, err := w.t.before(at+n, n)
	w.at, w.b = at, b
	return b, err
}

// frames adds up what the frames say of their contents, up to the first large one that
// says nothing. What was not looked at is at least as much as it is packed.
func (w *frameWalk) frames() (sum int64, err error) {
	for at := int64(0); at < w.t.size; {
		n, next, err := w.frame(at)
		switch rest := w.t.size - at; {
		case err != nil:
			return 0, err
		case n > math.MaxInt64/2-sum:
			return sum, nil
		case next == 0 && w.reads == walkReads:
			return sum + max(n, rest-rest/stretch), nil
		case next == 0:
			return sum + n, nil
		}
		sum, at = sum+n, next
	}
	return sum, nil
}

// frame is what the frame at at says of its contents, if that can be, and where the next
// one begins; 0 is that nobody knows.
func (w *frameWalk) frame(at int64) (n, next int64, err error) {
	b, err := w.peek(at, zstd.HeaderMaxSize)
	if err != nil || b == nil {
		return 0, 0, err
	}
	var h zstd.Header
	switch err := h.Decode(b); {
	case err != nil:
		return 0, 0, nil // the decoder will say why
	case h.Skippable:
		return 0, w.inside(at + int64(h.HeaderSize) + int64(h.SkippableSize)), nil
	case !h.HasFCS && !(h.FirstBlock.OK && h.FirstBlock.Last): // a stream, of any length
		return 0, 0, nil
	case h.FrameContentSize/maxBlock > uint64(w.t.size-at)/blockLeast:
		return 0, 0, nil
	}
	n = int64(h.FrameContentSize)
	w.count++
	next, blocks, err := w.blocks(at+int64(h.HeaderSize), h.HasCheckSum)
	if next > 0 && n > blocks*maxBlock {
		return 0, 0, nil // damaged
	}
	return n, next, err
}

// blockLeast is the fewest bytes that a block has, but for an empty one.
const blockLeast = blockHead + 1

// blocks is where the frame ends whose blocks begin at at, and how many they are.
func (w *frameWalk) blocks(at int64, checksum bool) (end, count int64, err error) {
	for {
		b, err := w.peek(at, blockHead)
		if err != nil || len(b) < blockHead {
			return 0, count, err
		}
		x := blockOf(b, checksum)
		at, count = w.inside(at+int64(x.length)), count+1
		switch {
		case x.bad || at == 0:
			return 0, count, nil
		case x.last:
			return at, count, nil
		}
	}
}

// inside is at, or 0 if that is beyond the file.
func (w *frameWalk) inside(at int64) int64 {
	if at > w.t.size {
		return 0
	}
	return at
}
