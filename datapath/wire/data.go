package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// SpaceResp reports how full a node is.
type SpaceResp struct{ Space datapath.Space }

func (m *SpaceResp) fields(c *codec) {
	u64(c, &m.Space.Capacity)
	u64(c, &m.Space.Used)
	u64(c, &m.Space.Free)
	u64(c, &m.Space.Objects)
}

// ReadReq asks for Len bytes of an object, at most MaxData.
type ReadReq struct {
	Ino metadata.Ino
	Off int64
	Len uint32
}

func (m *ReadReq) fields(c *codec) {
	u64(c, &m.Ino)
	u64(c, &m.Off)
	u32(c, &m.Len)
}

// WriteReq is the destination of the data in the frame.
type WriteReq struct {
	Ino metadata.Ino
	Off int64
}

func (m *WriteReq) fields(c *codec) {
	u64(c, &m.Ino)
	u64(c, &m.Off)
}

// SummedWriteReq is a WriteReq with the Sum of the data.
type SummedWriteReq struct {
	WriteReq
	Sum uint32
}

func (m *SummedWriteReq) fields(c *codec) {
	m.WriteReq.fields(c)
	u32(c, &m.Sum)
}

// CopyRangeReq is the destination of the frame's data in a copy that is being made (copies.Range).
type CopyRangeReq struct {
	Ino           metadata.Ino
	By            metadata.Epoch
	Run           metadata.Run
	Try, Seq      uint64
	Off, Expected int64 // Expected is the space that the whole copy may take
}

func (m *CopyRangeReq) fields(c *codec) {
	u64(c, &m.Ino)
	u64(c, &m.By)
	u64(c, &m.Run)
	u64(c, &m.Try)
	u64(c, &m.Seq)
	u64(c, &m.Off)
	u64(c, &m.Expected)
}

// SumResp is the Sum of the data in the frame.
type SumResp struct{ Sum uint32 }

func (m *SumResp) fields(c *codec) { u32(c, &m.Sum) }

// Sum returns the CRC-32C of data.
func Sum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// CheckSum returns EBADMSG unless the sum of data is want.
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

func (m *TruncateReq) fields(c *codec) {
	u64(c, &m.Ino)
	u64(c, &m.Size)
}

// RangeReq names a range of an object: allocate, punch.
type RangeReq struct {
	Ino metadata.Ino
	Off int64
	Len int64
}

func (m *RangeReq) fields(c *codec) {
	u64(c, &m.Ino)
	u64(c, &m.Off)
	u64(c, &m.Len)
}

// DataReq asks for the next range with data, from Off on.
type DataReq struct {
	Ino metadata.Ino
	Off int64
}

func (m *DataReq) fields(c *codec) {
	u64(c, &m.Ino)
	u64(c, &m.Off)
}

// ExtentResp answers with a range of an object.
type ExtentResp struct{ Extent datapath.Extent }

func (m *ExtentResp) fields(c *codec) {
	u64(c, &m.Extent.From)
	u64(c, &m.Extent.To)
}

// SizeResp answers with a number of bytes: allocated.
type SizeResp struct{ Bytes int64 }

func (m *SizeResp) fields(c *codec) { u64(c, &m.Bytes) }

// pieceSize is the size of a PieceHeader, in bytes.
const pieceSize = 8 + 8 + 4 + 16

// MaxPieces is the most pieces in one request: with MaxData bytes they fit in a
// buffer for one write.
const MaxPieces = 112

// PieceHeader is the destination of a part of the frame's data.
type PieceHeader struct {
	Ino metadata.Ino
	Off int64
	Len uint32
	Sum [16]byte // xxh3-128 of these bytes
}

// PutPiecesReq writes pieces of dataset files, whose bytes are concatenated in the frame's data.
type PutPiecesReq struct{ Heads []PieceHeader } // at most MaxPieces

func (m *PutPiecesReq) fields(c *codec) {
	list(c, &m.Heads, MaxPieces, pieceSize, func(c *codec, h *PieceHeader) {
		u64(c, &h.Ino)
		u64(c, &h.Off)
		u32(c, &h.Len)
		c.fixed(h.Sum[:])
	})
}

// Split calls fn with each piece and its bytes. The lengths must add up to all of
// data.
func (m *PutPiecesReq) Split(data []byte, fn func(i int, h *PieceHeader, b []byte)) error {
	var all uint64
	for _, h := range m.Heads {
		all += uint64(h.Len)
	}
	if all != uint64(len(data)) {
		return fmt.Errorf("pieces of %d bytes in %d bytes of data: %w", all, len(data), syscall.EPROTO)
	}
	for i := range m.Heads {
		h := &m.Heads[i]
		fn(i, h, data[:h.Len:h.Len])
		data = data[h.Len:]
	}
	return nil
}

// PieceSum returns the checksum of a piece.
func PieceSum(b []byte) [16]byte { return xxh3.Hash128(b).Bytes() }

// Check returns EBADMSG unless b has the sum in h.
func (h *PieceHeader) Check(b []byte) error {
	if got := PieceSum(b); got != h.Sum {
		return fmt.Errorf("%d bytes with the checksum %x came, %x was sent: %w", len(b), got, h.Sum, syscall.EBADMSG)
	}
	return nil
}

// PutPiecesResp has the errno of each piece, 0 for one that is written.
type PutPiecesResp struct{ Status []syscall.Errno }

func (m *PutPiecesResp) fields(c *codec) {
	list(c, &m.Status, MaxPieces, 2, u16[syscall.Errno])
}

// InoOf returns the inode at the start of a request, as in requests for file data; 0 if the body is too short.
func InoOf(body []byte) metadata.Ino {
	if len(body) < 8 {
		return 0
	}
	return metadata.Ino(binary.LittleEndian.Uint64(body))
}
