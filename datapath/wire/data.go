package wire

import (
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
