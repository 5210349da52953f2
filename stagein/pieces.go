package stagein

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Piece is what one node has read of a member that the end of a region cuts. The
// pieces of all nodes together make its checksum.
type Piece struct {
	Ino  metadata.Ino `json:"ino"`
	Size int64        `json:"size"` // of the file
	Off  int64        `json:"off"`  // of the piece in it
	Len  int64        `json:"len"`
	CRC  uint32       `json:"crc"` // CRC-32C of its bytes
}

// JoinPieces makes the sums of files of all their pieces. What does not fit
// together is EPROTO.
func JoinPieces(all []Piece) (map[metadata.Ino][16]byte, error) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Piece) int {
		return cmp.Or(cmp.Compare(a.Ino, b.Ino), cmp.Compare(a.Off, b.Off), cmp.Compare(a.Len, b.Len))
	})
	sums := make(map[metadata.Ino][16]byte)
	for i := 0; i < len(all); {
		crc, off, first := uint32(0), int64(0), all[i]
		for ; i < len(all) && all[i].Ino == first.Ino; i++ {
			p := all[i]
			if p.Off != off || p.Len < 0 || p.Size != first.Size {
				return nil, fmt.Errorf("checksum of inode %v: piece [%d, %d) of %d bytes does not follow %d: %w",
					p.Ino, p.Off, p.Off+p.Len, p.Size, off, syscall.EPROTO)
			}
			crc, off = joinCRC(crc, p.CRC, p.Len), off+p.Len
		}
		if off != first.Size {
			return nil, fmt.Errorf("checksum of inode %v: pieces of %d bytes of %d: %w", first.Ino, off, first.Size, syscall.EPROTO)
		}
		sums[first.Ino] = crcSum(crc)
	}
	return sums, nil
}

// joinCRC is the CRC-32C of what has the CRC a with n bytes behind it that have
// the CRC b. A CRC is the remainder of a polynomial over GF(2): a is multiplied by
// x to the power of 8n, and added to b.
func joinCRC(a, b uint32, n int64) uint32 {
	power := uint32(1) << 30 // x, with the bits as they lie in a CRC
	for range 3 {
		power = multiply(power, power) // x^8
	}
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			a = multiply(a, power)
		}
		power = multiply(power, power)
	}
	return a ^ b
}

// multiply multiplies polynomials modulo Castagnoli's; the highest bit is x^0.
func multiply(a, b uint32) (p uint32) {
	for bit := uint32(1) << 31; bit != 0; bit >>= 1 {
		if a&bit != 0 {
			p ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.Castagnoli
		}
	}
	return p
}
