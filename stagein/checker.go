package stagein

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/stagein/archive"
)

// A file's Sum is the xxh3-128 of its bytes. If several nodes have read pieces of it, it is crcMark and the four bytes
// of its CRC-32C instead, because CRCs of pieces can be combined. Zeros: there is no sum.
const crcMark = "crc-32c of b"

// CRCSum returns the Sum of a file with the given CRC-32C.
func CRCSum(crc uint32) (sum [16]byte) {
	binary.BigEndian.PutUint32(sum[copy(sum[:], crcMark):], crc)
	return sum
}

// IsCRC reports whether a Sum is a CRC-32C.
func IsCRC(sum [16]byte) bool { return string(sum[:len(crcMark)]) == crcMark }

// Checker compares the bytes written to it with a file's Sum.
type Checker struct {
	want [16]byte
	left int64
	xxh  *xxh3.Hasher128
	crc  hash.Hash32
}

// NewChecker returns the checker of a file of size bytes with the Sum want.
func NewChecker(want [16]byte, size int64) *Checker {
	c := &Checker{want: want, left: size}
	if IsCRC(want) {
		c.crc = crc32.New(archive.Castagnoli)
	} else {
		c.xxh = xxh3.New128()
	}
	return c
}

// Write implements io.Writer; it cannot fail.
func (c *Checker) Write(p []byte) (int, error) {
	c.left -= int64(len(p))
	if c.crc != nil {
		return c.crc.Write(p)
	}
	return c.xxh.Write(p)
}

// Summed reports whether there is a Sum to compare with.
func (c *Checker) Summed() bool { return c.want != [16]byte{} }

// Check returns EIO if the bytes written do not match.
func (c *Checker) Check() error {
	if c.left != 0 {
		return fmt.Errorf("%d bytes too few: %w", c.left, syscall.EIO)
	}
	var got [16]byte
	if c.crc != nil {
		got = CRCSum(c.crc.Sum32())
	} else {
		got = c.xxh.Sum128().Bytes()
	}
	if c.Summed() && got != c.want {
		return fmt.Errorf("has checksum %s, had %s when it was staged: %w", hex.EncodeToString(got[:]), hex.EncodeToString(c.want[:]), syscall.EIO)
	}
	return nil
}

// Summer computes the checksum of a file.
type Summer struct{ *xxh3.Hasher128 }

// NewSummer returns a Summer of no bytes.
func NewSummer() Summer { return Summer{xxh3.New128()} }

// Sum returns the checksum of the bytes written.
func (s Summer) Sum() [16]byte { return s.Sum128().Bytes() }
