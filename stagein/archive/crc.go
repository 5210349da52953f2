package archive

import (
	"hash/crc32"
)

// JoinCRC returns the CRC-32C of bytes with the CRC a followed by n bytes with the CRC b. A CRC is the remainder of a
// polynomial over GF(2): a is multiplied by x to the power of 8n, and added to b.
func JoinCRC(a, b uint32, n int64) uint32 {
	power := uint32(1) << 30 // x, in the bit order of a CRC
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

var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// HoleSum computes the CRC-32C of a part of a sparse file. A hole costs the same whatever its size.
type HoleSum struct {
	crc uint32
	Pos int64 // end of the bytes summed so far
}

func (h *HoleSum) Write(b []byte, pos int64) {
	h.UpTo(pos)
	h.crc, h.Pos = crc32.Update(h.crc, Castagnoli, b), pos+int64(len(b))
}

// UpTo returns the sum up to pos; the bytes from Pos to pos are a hole.
func (h *HoleSum) UpTo(pos int64) uint32 {
	if n := pos - h.Pos; n > 0 {
		h.crc, h.Pos = JoinCRC(h.crc, ZerosCRC(n), n), pos
	}
	return h.crc
}

// ZerosCRC returns the CRC-32C of n zeros.
func ZerosCRC(n int64) (crc uint32) {
	power, length := crc32.Checksum([]byte{0}, Castagnoli), int64(1)
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			crc = JoinCRC(crc, power, length)
		}
		power, length = JoinCRC(power, power, length), 2*length
	}
	return crc
}
