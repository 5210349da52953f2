package wire

import (
	"fmt"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
)

// parcelSize is what a PieceHeader takes, in bytes.
const parcelSize = 8 + 8 + 4 + 16

// MaxPieces is the most pieces that one request has, so that with MaxData bytes it
// fits in a buffer for one write.
const MaxPieces = 112

// PieceHeader says where some of the frame's data goes.
type PieceHeader struct {
	Ino metadata.Ino
	Off int64
	Len uint32
	Sum [16]byte // xxh3-128 of these bytes
}

// PutPiecesReq is bytes of files of datasets, which stand in the frame's data one
// behind the other. It has at most MaxPieces.
type PutPiecesReq struct{ Heads []PieceHeader }

// Append appends the encoding of m to b.
func (m PutPiecesReq) Append(b []byte) []byte {
	b = appendU32(b, uint32(len(m.Heads)))
	for _, h := range m.Heads {
		b = appendU32(appendI64(appendIno(b, h.Ino), h.Off), h.Len)
		b = append(b, h.Sum[:]...)
	}
	return b
}

// Parse decodes b into m.
func (m *PutPiecesReq) Parse(b []byte) error {
	d := decoder{b: b}
	n := d.u32()
	if n > MaxPieces || int(n)*parcelSize != len(d.b) {
		return fmt.Errorf("%d parcels in %d bytes: %w", n, len(b), ErrMalformed)
	}
	m.Heads = nil
	if n > 0 {
		m.Heads = make([]PieceHeader, n)
	}
	for i := range m.Heads {
		h := &m.Heads[i]
		h.Ino, h.Off, h.Len = d.ino(), d.i64(), d.u32()
		copy(h.Sum[:], d.take(len(h.Sum)))
	}
	return d.done("parcels")
}

// Split calls fn with each parcel and its bytes. The lengths must add up to all of
// data.
func (m *PutPiecesReq) Split(data []byte, fn func(i int, h *PieceHeader, b []byte)) error {
	var all uint64
	for _, h := range m.Heads {
		all += uint64(h.Len)
	}
	if all != uint64(len(data)) {
		return fmt.Errorf("parcels of %d bytes in %d bytes of data: %w", all, len(data), syscall.EPROTO)
	}
	for i := range m.Heads {
		h := &m.Heads[i]
		fn(i, h, data[:h.Len:h.Len])
		data = data[h.Len:]
	}
	return nil
}

// PieceSum is the checksum of a parcel.
func PieceSum(b []byte) [16]byte { return xxh3.Hash128(b).Bytes() }

// Check is EBADMSG if b is not what was sent.
func (h *PieceHeader) Check(b []byte) error {
	if got := PieceSum(b); got != h.Sum {
		return fmt.Errorf("%d bytes with the checksum %x came, %x was sent: %w", len(b), got, h.Sum, syscall.EBADMSG)
	}
	return nil
}

// PutPiecesResp has the errno of each parcel, 0 for one that is written.
type PutPiecesResp struct{ Status []syscall.Errno }

// Append appends the encoding of m to b.
func (m PutPiecesResp) Append(b []byte) []byte {
	b = appendU32(b, uint32(len(m.Status)))
	for _, s := range m.Status {
		b = appendU16(b, uint16(s))
	}
	return b
}

// Parse decodes b into m.
func (m *PutPiecesResp) Parse(b []byte) error {
	d := decoder{b: b}
	n := d.u32()
	if n > MaxPieces || int(n)*2 != len(d.b) {
		return fmt.Errorf("%d parcels answered in %d bytes: %w", n, len(b), ErrMalformed)
	}
	m.Status = nil
	if n > 0 {
		m.Status = make([]syscall.Errno, n)
	}
	for i := range m.Status {
		m.Status[i] = syscall.Errno(d.u16())
	}
	return d.done("parcels")
}
