// Package varint decodes records: variable-length integers, in the encoding of encoding/binary, and bytes. A Decoder
// reads all fields of a record; afterwards Whole reports whether the record was complete.
package varint

import (
	"encoding/binary"
	"math"
)

// Decoder takes values off the front of B. The first value that is truncated or out of range sets Bad; later values are
// zero.
type Decoder struct {
	B   []byte
	Bad bool
}

// Whole reports whether all values were present, with nothing after them.
func (d *Decoder) Whole() bool { return !d.Bad && len(d.B) == 0 }

// Byte takes one byte.
func (d *Decoder) Byte() byte {
	if p := d.Bytes(1); p != nil {
		return p[0]
	}
	return 0
}

// Bytes takes n bytes, which alias the input; nil if there are fewer.
func (d *Decoder) Bytes(n uint64) []byte {
	if n > uint64(len(d.B)) {
		d.Bad, d.B = true, nil
		return nil
	}
	p := d.B[:n:n]
	d.B = d.B[n:]
	return p
}

// Fixed64 takes eight bytes, big endian.
func (d *Decoder) Fixed64() uint64 {
	if p := d.Bytes(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

// Uvarint takes an unsigned integer.
func (d *Decoder) Uvarint() uint64 {
	v, n := binary.Uvarint(d.B)
	if n <= 0 {
		d.Bad, d.B = true, nil
		return 0
	}
	d.B = d.B[n:]
	return v
}

// Varint takes a signed integer.
func (d *Decoder) Varint() int64 {
	v, n := binary.Varint(d.B)
	if n <= 0 {
		d.Bad, d.B = true, nil
		return 0
	}
	d.B = d.B[n:]
	return v
}

// Bounded takes an unsigned integer of at most limit.
func (d *Decoder) Bounded(limit uint64) uint64 {
	v := d.Uvarint()
	if v > limit {
		d.Bad = true
		return 0
	}
	return v
}

// Uint32 takes an unsigned integer of 32 bits.
func (d *Decoder) Uint32() uint32 { return uint32(d.Bounded(math.MaxUint32)) }

// Uint16 takes an unsigned integer of 16 bits.
func (d *Decoder) Uint16() uint16 { return uint16(d.Bounded(math.MaxUint16)) }

// Size takes a number of bytes or an offset.
func (d *Decoder) Size() int64 { return int64(d.Bounded(math.MaxInt64)) }

// Text takes a string with its length.
func (d *Decoder) Text() string { return string(d.Bytes(d.Uvarint())) }
