package stagein

import (
	"errors"
	"hash/crc32"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// holeSum is the CRC-32C of a stretch of a file with holes, which cost nothing
// however large they are.
type holeSum struct {
	crc uint32
	pos int64 // of what is summed up already
}

func (h *holeSum) write(b []byte, pos int64) {
	h.upTo(pos)
	h.crc, h.pos = crc32.Update(h.crc, castagnoli, b), pos+int64(len(b))
}

// upTo is the sum up to pos, before which nothing but a hole is left.
func (h *holeSum) upTo(pos int64) uint32 {
	if n := pos - h.pos; n > 0 {
		h.crc, h.pos = joinCRC(h.crc, zerosCRC(n), n), pos
	}
	return h.crc
}

// zerosCRC is the CRC-32C of n zeros.
func zerosCRC(n int64) (crc uint32) {
	power, length := crc32.Checksum([]byte{0}, castagnoli), int64(1)
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			crc = joinCRC(crc, power, length)
		}
		power, length = joinCRC(power, power, length), 2*length
	}
	return crc
}

// ends makes the objects of a sparse file as long as they are to be: where a
// hole is last, a byte of it is written.
func (p *pusher) ends(o *object, m *source.Sparse) error {
	if m == nil || m.Size == 0 {
		return nil
	}
	for _, pos := range lastBytes(o.layout, len(o.order), m.Size) {
		if m.Data(pos) {
			continue
		}
		if err := p.put(o, []byte{0}, source.Bytes(nil, 0), pos); err != nil {
			return err
		}
		p.count(-1) // with its hole
	}
	return nil
}

// lastBytes is where, in a file of size bytes, the last byte of each object of it
// is that lies on one of width nodes.
func lastBytes(l metadata.Layout, width int, size int64) []int64 {
	if l.Kind != metadata.Striped {
		return []int64{size - 1}
	}
	var all []int64
	chunk := l.Chunk()
	for c := (size - 1) / chunk; c >= 0 && len(all) < width; c-- {
		all = append(all, min((c+1)*chunk, size)-1)
	}
	return all
}

// errSparse says that a tar has a sparse member, so that it is staged in a single pass.
var errSparse = errors.New("the member is sparse")
