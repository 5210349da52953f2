package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/bivouacfs/bivouac/metadata"
)

// Sizes of the encodings without their strings, in bytes.
const (
	layoutSize = 1 + 1 + 2 + 4 + 2 + 8
	attrSize   = 8 + 5*4 + 4*8 + layoutSize
	entrySize  = 8 + 4 + 1 + 4 // without an Attr, with an empty name
)

// decoder takes fields off the front of a message. After the first field that
// is not there everything is zero and done fails.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) u8() uint8 {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if p := d.take(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if p := d.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if p := d.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (d *decoder) i64() int64          { return int64(d.u64()) }
func (d *decoder) ino() metadata.Ino   { return metadata.Ino(d.u64()) }
func (d *decoder) time() metadata.Time { return metadata.Time(d.u64()) }

func (d *decoder) bool() bool {
	v := d.u8()
	if v > 1 {
		d.bad = true
	}
	return v == 1
}

func (d *decoder) string() string {
	n := d.u32()
	if uint64(n) > uint64(len(d.b)) {
		d.bad = true
		return ""
	}
	return string(d.take(int(n)))
}

func (d *decoder) layout() metadata.Layout {
	return metadata.Layout{
		Kind:      metadata.LayoutKind(d.u8()),
		Copies:    d.u8(),
		Node:      metadata.NodeID(d.u16()),
		ChunkSize: d.u32(),
		Width:     d.u16(),
		Epoch:     metadata.Epoch(d.u64()),
	}
}

func (d *decoder) attr() metadata.Attr {
	return metadata.Attr{
		Ino:    d.ino(),
		Mode:   d.u32(),
		Nlink:  d.u32(),
		UID:    d.u32(),
		GID:    d.u32(),
		Rdev:   d.u32(),
		Size:   d.i64(),
		Atime:  d.time(),
		Mtime:  d.time(),
		Ctime:  d.time(),
		Layout: d.layout(),
	}
}

func (d *decoder) new() metadata.New {
	return metadata.New{
		Mode:   d.u32(),
		UID:    d.u32(),
		GID:    d.u32(),
		Rdev:   d.u32(),
		Target: d.string(),
		Layout: d.layout(),
	}
}

func (d *decoder) change() metadata.Change {
	return metadata.Change{
		Set:    metadata.Set(d.u32()),
		Mode:   d.u32(),
		UID:    d.u32(),
		GID:    d.u32(),
		Size:   d.i64(),
		Atime:  d.time(),
		Mtime:  d.time(),
		Layout: d.layout(),
	}
}

// entry decodes an Entry. Its Attr, if it has one, is put in the room that
// attr returns.
func (d *decoder) entry(attr func() *metadata.Attr) metadata.Entry {
	e := metadata.Entry{Ino: d.ino(), Mode: d.u32()}
	if d.bool() {
		e.Attr = attr()
		*e.Attr = d.attr()
	}
	e.Name = d.string()
	return e
}

func newAttr() *metadata.Attr { return new(metadata.Attr) }

// done is the verdict on a whole message: nothing missing, nothing left.
func (d *decoder) done(what string) error {
	if d.bad {
		return fmt.Errorf("%s: cut short or out of range: %w", what, ErrMalformed)
	}
	if len(d.b) > 0 {
		return fmt.Errorf("%s: %d bytes left over: %w", what, len(d.b), ErrMalformed)
	}
	return nil
}

func appendU16(b []byte, v uint16) []byte         { return binary.LittleEndian.AppendUint16(b, v) }
func appendU32(b []byte, v uint32) []byte         { return binary.LittleEndian.AppendUint32(b, v) }
func appendU64(b []byte, v uint64) []byte         { return binary.LittleEndian.AppendUint64(b, v) }
func appendI64(b []byte, v int64) []byte          { return appendU64(b, uint64(v)) }
func appendIno(b []byte, i metadata.Ino) []byte   { return appendU64(b, uint64(i)) }
func appendTime(b []byte, t metadata.Time) []byte { return appendU64(b, uint64(t)) }

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendString(b []byte, s string) []byte {
	return append(appendU32(b, uint32(len(s))), s...)
}

func appendLayout(b []byte, l metadata.Layout) []byte {
	b = append(b, uint8(l.Kind), l.Copies)
	b = appendU16(b, uint16(l.Node))
	b = appendU32(b, l.ChunkSize)
	b = appendU16(b, l.Width)
	return appendU64(b, uint64(l.Epoch))
}

func appendAttr(b []byte, a *metadata.Attr) []byte {
	b = appendIno(b, a.Ino)
	b = appendU32(b, a.Mode)
	b = appendU32(b, a.Nlink)
	b = appendU32(b, a.UID)
	b = appendU32(b, a.GID)
	b = appendU32(b, a.Rdev)
	b = appendI64(b, a.Size)
	b = appendTime(b, a.Atime)
	b = appendTime(b, a.Mtime)
	b = appendTime(b, a.Ctime)
	return appendLayout(b, a.Layout)
}

func appendEntry(b []byte, e *metadata.Entry) []byte {
	b = appendIno(b, e.Ino)
	b = appendU32(b, e.Mode)
	b = appendBool(b, e.Attr != nil)
	if e.Attr != nil {
		b = appendAttr(b, e.Attr)
	}
	return appendString(b, e.Name)
}

func appendNew(b []byte, n *metadata.New) []byte {
	b = appendU32(b, n.Mode)
	b = appendU32(b, n.UID)
	b = appendU32(b, n.GID)
	b = appendU32(b, n.Rdev)
	b = appendString(b, n.Target)
	return appendLayout(b, n.Layout)
}

func appendChange(b []byte, c *metadata.Change) []byte {
	b = appendU32(b, uint32(c.Set))
	b = appendU32(b, c.Mode)
	b = appendU32(b, c.UID)
	b = appendU32(b, c.GID)
	b = appendI64(b, c.Size)
	b = appendTime(b, c.Atime)
	b = appendTime(b, c.Mtime)
	return appendLayout(b, c.Layout)
}
