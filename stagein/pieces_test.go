package stagein

import (
	"errors"
	"hash/crc32"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestJoinPieces: joining the checksums of the pieces gives the checksum of the whole.
func TestJoinPieces(t *testing.T) {
	r := stageintest.Rand(t)
	for range 200 {
		b := stageintest.RandBytes(r, r.IntN(5000))
		ino := metadata.SealedIno(1, 2, 3)
		var all []Piece
		for off := 0; off < len(b) || off == 0; {
			n := min(r.IntN(len(b)+1), len(b)-off)
			all = append(all, Piece{ino, int64(len(b)), int64(off), int64(n), crc32.Checksum(b[off:off+n], archive.Castagnoli)})
			if off += n; len(b) == 0 {
				break
			}
		}
		r.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		sums, err := JoinPieces(all)
		if err != nil {
			t.Fatal(err)
		}
		c := NewChecker(sums[ino], int64(len(b)))
		if _, err := c.Write(b); err != nil || !c.Summed() || c.Check() != nil {
			t.Fatalf("%d bytes in %d pieces: %v", len(b), len(all), c.Check())
		}
		if len(b) == 0 {
			continue
		}
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		c = NewChecker(sums[ino], int64(len(b)))
		if _, err := c.Write(b); err != nil || !errors.Is(c.Check(), syscall.EIO) {
			t.Fatalf("a flipped bit: %v", c.Check())
		}
	}
	for _, bad := range [][]Piece{
		{{Ino: 1, Size: 10, Off: 1, Len: 9}}, {{Ino: 1, Size: 10, Len: 9}}, {{Ino: 1, Size: 10, Len: 6}, {Ino: 1, Size: 10, Off: 5, Len: 5}},
		{{Ino: 1, Size: 10, Len: 5}, {Ino: 1, Size: 11, Off: 5, Len: 6}}, {{Ino: 1, Size: -1, Len: -1}},
	} {
		if _, err := JoinPieces(bad); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("JoinPieces(%+v): %v, want EPROTO", bad, err)
		}
	}
}
