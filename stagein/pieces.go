package stagein

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/archive"
)

// Piece is the part that one node has read of a member that the end of a region cuts. The pieces of all nodes together
// give the member's checksum.
type Piece struct {
	Ino  metadata.Ino `json:"ino"`
	Size int64        `json:"size"` // of the file
	Off  int64        `json:"off"`  // of the piece in the file
	Len  int64        `json:"len"`
	CRC  uint32       `json:"crc"` // CRC-32C of its bytes
}

// JoinPieces returns the sums of files from all their pieces. Pieces that do not fit together are EPROTO.
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
			crc, off = archive.JoinCRC(crc, p.CRC, p.Len), off+p.Len
		}
		if off != first.Size {
			return nil, fmt.Errorf("checksum of inode %v: pieces of %d bytes of %d: %w", first.Ino, off, first.Size, syscall.EPROTO)
		}
		sums[first.Ino] = CRCSum(crc)
	}
	return sums, nil
}
