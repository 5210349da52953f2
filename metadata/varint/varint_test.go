package varint

import (
	"encoding/binary"
	"math"
	"testing"
)

// TestDecoder: appended values are decoded, and every truncation is detected.
func TestDecoder(t *testing.T) {
	b := []byte{7}
	b = binary.AppendUvarint(b, math.MaxUint64)
	b = binary.AppendVarint(b, math.MinInt64)
	b = binary.AppendUvarint(b, math.MaxUint32)
	b = binary.AppendUvarint(b, math.MaxUint16)
	b = binary.AppendUvarint(b, math.MaxInt64)
	b = binary.BigEndian.AppendUint64(b, 1<<63)
	b = append(binary.AppendUvarint(b, 4), "text"...)
	take := func(b []byte) (d Decoder, right bool) {
		d = Decoder{B: b}
		right = d.Byte() == 7 && d.Uvarint() == math.MaxUint64 && d.Varint() == math.MinInt64 && d.Uint32() == math.MaxUint32 &&
			d.Uint16() == math.MaxUint16 && d.Size() == math.MaxInt64 && d.Fixed64() == 1<<63 && d.Text() == "text"
		return d, right
	}
	if d, right := take(b); !right || !d.Whole() {
		t.Errorf("%+v", d)
	}
	for n := range b {
		if d, right := take(b[:n]); right || d.Whole() {
			t.Errorf("%d bytes of %d are taken for all", n, len(b))
		}
	}
	if d, right := take(append(b, 0)); !right || d.Whole() {
		t.Error("one byte more is taken for nothing")
	}
}

// TestDecoderBounds: a value that is too large is an error, and decodes as zero.
func TestDecoderBounds(t *testing.T) {
	over := func(v uint64) Decoder { return Decoder{B: binary.AppendUvarint(nil, v)} }
	for name, f := range map[string]func() (uint64, bool){
		"32 bits": func() (uint64, bool) { d := over(math.MaxUint32 + 1); return uint64(d.Uint32()), d.Bad },
		"16 bits": func() (uint64, bool) { d := over(math.MaxUint16 + 1); return uint64(d.Uint16()), d.Bad },
		"a size":  func() (uint64, bool) { d := over(math.MaxInt64 + 1); return uint64(d.Size()), d.Bad },
		"a bound": func() (uint64, bool) { d := over(11); return d.Bounded(10), d.Bad },
		"a text":  func() (uint64, bool) { d := over(1 << 40); return uint64(len(d.Text())), d.Bad },
	} {
		if v, bad := f(); !bad || v != 0 {
			t.Errorf("over %s: %d, bad %v", name, v, bad)
		}
	}
}
