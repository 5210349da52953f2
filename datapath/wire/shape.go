package wire

import (
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// RangeReq names a range of an object: allocate, punch.
type RangeReq struct {
	Ino metadata.Ino
	Off int64
	Len int64
}

// Append appends the encoding of m to b.
func (m RangeReq) Append(b []byte) []byte {
	return appendI64(appendI64(appendIno(b, m.Ino), m.Off), m.Len)
}

// Parse decodes b into m.
func (m *RangeReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = RangeReq{Ino: d.ino(), Off: d.i64(), Len: d.i64()}
	return d.done("range request")
}

// DataReq asks where data is, from Off on.
type DataReq struct {
	Ino metadata.Ino
	Off int64
}

// Append appends the encoding of m to b.
func (m DataReq) Append(b []byte) []byte { return appendI64(appendIno(b, m.Ino), m.Off) }

// Parse decodes b into m.
func (m *DataReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = DataReq{Ino: d.ino(), Off: d.i64()}
	return d.done("data request")
}

// ExtentResp answers with a stretch of an object.
type ExtentResp struct {
	Extent datapath.Extent
}

// Append appends the encoding of m to b.
func (m ExtentResp) Append(b []byte) []byte {
	return appendI64(appendI64(b, m.Extent.From), m.Extent.To)
}

// Parse decodes b into m.
func (m *ExtentResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Extent = datapath.Extent{From: d.i64(), To: d.i64()}
	return d.done("extent")
}

// SizeResp answers with a number of bytes: allocated.
type SizeResp struct {
	Bytes int64
}

// Append appends the encoding of m to b.
func (m SizeResp) Append(b []byte) []byte { return appendI64(b, m.Bytes) }

// Parse decodes b into m.
func (m *SizeResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Bytes = d.i64()
	return d.done("size")
}
