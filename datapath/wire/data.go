package wire

import (
	"fmt"
	"hash/crc32"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// SpaceResp answers how full a node is.
type SpaceResp struct {
	Space datapath.Space
}

// Append appends the encoding of m to b.
func (m SpaceResp) Append(b []byte) []byte {
	b = appendI64(b, m.Space.Capacity)
	b = appendI64(b, m.Space.Used)
	b = appendI64(b, m.Space.Free)
	return appendI64(b, m.Space.Objects)
}

// Parse decodes b into m.
func (m *SpaceResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Space = datapath.Space{Capacity: d.i64(), Used: d.i64(), Free: d.i64(), Objects: d.i64()}
	return d.done("space")
}

// ReadReq asks for Len bytes of an object, at most MaxData.
type ReadReq struct {
	Ino metadata.Ino
	Off int64
	Len uint32
}

// Append appends the encoding of m to b.
func (m ReadReq) Append(b []byte) []byte {
	return appendU32(appendI64(appendIno(b, m.Ino), m.Off), m.Len)
}

// Parse decodes b into m.
func (m *ReadReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = ReadReq{Ino: d.ino(), Off: d.i64(), Len: d.u32()}
	return d.done("read request")
}

// WriteReq says where the frame's data goes.
type WriteReq struct {
	Ino metadata.Ino
	Off int64
}

// Append appends the encoding of m to b.
func (m WriteReq) Append(b []byte) []byte { return appendI64(appendIno(b, m.Ino), m.Off) }

// Parse decodes b into m.
func (m *WriteReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = WriteReq{Ino: d.ino(), Off: d.i64()}
	return d.done("write request")
}

// SummedWriteReq is a WriteReq with the Sum of the data.
type SummedWriteReq struct {
	WriteReq
	Sum uint32
}

// Append appends the encoding of m to b.
func (m SummedWriteReq) Append(b []byte) []byte { return appendU32(m.WriteReq.Append(b), m.Sum) }

// Parse decodes b into m.
func (m *SummedWriteReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = SummedWriteReq{WriteReq{Ino: d.ino(), Off: d.i64()}, d.u32()}
	return d.done("summed write request")
}

// SumResp is the Sum of the data in the frame.
type SumResp struct{ Sum uint32 }

// Append appends the encoding of m to b.
func (m SumResp) Append(b []byte) []byte { return appendU32(b, m.Sum) }

// Parse decodes b into m.
func (m *SumResp) Parse(b []byte) error {
	d := decoder{b: b}
	*m = SumResp{d.u32()}
	return d.done("sum")
}

// Sum is the CRC-32C of data.
func Sum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// CheckSum is EBADMSG if data is not what has the sum want.
func CheckSum(data []byte, want uint32) error {
	if got := Sum(data); got != want {
		return fmt.Errorf("%d bytes with the checksum %08x came, %08x was sent: %w", len(data), got, want, syscall.EBADMSG)
	}
	return nil
}

// TruncateReq cuts an object to Size bytes.
type TruncateReq struct {
	Ino  metadata.Ino
	Size int64
}

// Append appends the encoding of m to b.
func (m TruncateReq) Append(b []byte) []byte { return appendI64(appendIno(b, m.Ino), m.Size) }

// Parse decodes b into m.
func (m *TruncateReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = TruncateReq{Ino: d.ino(), Size: d.i64()}
	return d.done("truncate request")
}
