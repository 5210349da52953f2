package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Version is the version of the protocol.
const Version = 10 // 9 had no st_ctime before a change, 8 had opens without the run of the home, 7 had copies of homes only, 6 had freezes without numbers and recalls that were never busy, 5 had leases without sessions, 4 had no protection, 3 opens without mappings, 2 counts of other sizes, 1 no checksum of bodies

// The bounds of a frame, in bytes.
const (
	HeaderSize = 36
	MaxFrame   = 4 << 20           // body and data together
	MaxData    = 1 << 20           // payload of one read or write
	MaxMany    = MaxFrame - 64<<10 // payload of a read of many files
)

// MaxEntries is a number of entries that always fits in one EntriesResp or LeasedListingResp.
const MaxEntries = MaxFrame/(metadata.MaxName+entrySize+attrSize+1+termsSize) - 1

// ErrTooLarge is the error of Header.Parse for a length out of bounds.
var ErrTooLarge = fmt.Errorf("frame is too large: %w", syscall.EMSGSIZE)

// ErrMalformed is the error of every other failed Parse.
var ErrMalformed = fmt.Errorf("malformed message: %w", syscall.EBADMSG)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is the start of a frame.
type Header struct {
	Body   uint32 // bytes of body
	Data   uint32 // bytes of data after the body
	Op     Op
	Status syscall.Errno // of a reply
	Tag    uint32
	Epoch  metadata.Epoch
	Wait   uint32 // of a request, in milliseconds; 0: for ever
	Sum    uint32 // of the body
}

// Append appends the encoding of h, HeaderSize bytes, to b.
func (h Header) Append(b []byte) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, h.Body+h.Data)
	b = binary.LittleEndian.AppendUint32(b, h.Body)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.Op))
	b = binary.LittleEndian.AppendUint16(b, uint16(h.Status))
	b = binary.LittleEndian.AppendUint32(b, h.Tag)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.Epoch))
	b = binary.LittleEndian.AppendUint32(b, h.Wait)
	b = binary.LittleEndian.AppendUint32(b, h.Sum)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// Parse decodes the HeaderSize bytes of b and checks the lengths: when it
// returns nil, Body and Data can be allocated. The error is ErrTooLarge or
// ErrMalformed.
func (h *Header) Parse(b []byte) error {
	if len(b) != HeaderSize {
		return fmt.Errorf("frame header of %d bytes: %w", len(b), ErrMalformed)
	}
	length := binary.LittleEndian.Uint32(b)
	body := binary.LittleEndian.Uint32(b[4:])
	if length > MaxFrame || body > length || length-body > Op(binary.LittleEndian.Uint16(b[8:])).maxData() {
		return fmt.Errorf("frame of %d bytes with a body of %d: %w", length, body, ErrTooLarge)
	}
	if crc32.Checksum(b[:32], castagnoli) != binary.LittleEndian.Uint32(b[32:]) {
		return fmt.Errorf("frame header checksum: %w", ErrMalformed)
	}
	*h = Header{
		Body:   body,
		Data:   length - body,
		Op:     Op(binary.LittleEndian.Uint16(b[8:])),
		Status: syscall.Errno(binary.LittleEndian.Uint16(b[10:])),
		Tag:    binary.LittleEndian.Uint32(b[12:]),
		Epoch:  metadata.Epoch(binary.LittleEndian.Uint64(b[16:])),
		Wait:   binary.LittleEndian.Uint32(b[24:]),
		Sum:    binary.LittleEndian.Uint32(b[28:]),
	}
	return nil
}

// CheckBody returns ErrMalformed unless body has the checksum in h.
func (h *Header) CheckBody(body []byte) error {
	if got := Sum(body); got != h.Sum {
		return fmt.Errorf("body of %v, %d bytes with the checksum %08x, want %08x: %w", h.Op, len(body), got, h.Sum, ErrMalformed)
	}
	return nil
}
