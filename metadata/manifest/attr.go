package manifest

import (
	"encoding/binary"
	"math"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// The flags of an attr.
const (
	attrLinks = 1 << iota
	attrAtime
	attrCtime
	attrNanos
	attrLocal
	attrLayout
	attrSpilled

	attrKnown = 1<<iota - 1
)

const second = 1_000_000_000

func attrFlags(a *metadata.Attr) (f byte) {
	if a.Nlink != 1 {
		f |= attrLinks
	}
	if a.Atime != a.Mtime {
		f |= attrAtime
	}
	if a.Ctime != a.Mtime {
		f |= attrCtime
	}
	if a.Mtime%second != 0 || a.Atime%second != 0 || a.Ctime%second != 0 {
		f |= attrNanos
	}
	if a.Layout.Kind == metadata.Local {
		f |= attrLocal
	}
	if a.Layout.Kind == metadata.Spilled {
		f |= attrSpilled
	}
	if l := a.Layout; l.Copies != 0 || l.ChunkSize != 0 || l.Width != 0 || l.Epoch != 0 {
		f |= attrLayout
	}
	return f
}

func appendAttr(b []byte, a *metadata.Attr) []byte {
	f := attrFlags(a)
	unit := int64(second)
	if f&attrNanos != 0 {
		unit = 1
	}
	b = append(b, f)
	b = binary.AppendUvarint(b, uint64(a.Mode))
	b = binary.AppendUvarint(b, uint64(a.UID))
	b = binary.AppendUvarint(b, uint64(a.GID))
	b = binary.AppendUvarint(b, uint64(a.Size))
	b = binary.AppendVarint(b, int64(a.Mtime)/unit)
	if f&attrAtime != 0 {
		b = binary.AppendVarint(b, (int64(a.Atime)-int64(a.Mtime))/unit)
	}
	if f&attrCtime != 0 {
		b = binary.AppendVarint(b, (int64(a.Ctime)-int64(a.Mtime))/unit)
	}
	if f&attrLinks != 0 {
		b = binary.AppendUvarint(b, uint64(a.Nlink))
	}
	if f&attrLocal != 0 {
		b = binary.AppendUvarint(b, uint64(a.Layout.Node))
	}
	if f&attrLayout != 0 {
		b = append(b, a.Layout.Copies)
		b = binary.AppendUvarint(b, uint64(a.Layout.ChunkSize))
		b = binary.AppendUvarint(b, uint64(a.Layout.Width))
		b = binary.AppendUvarint(b, uint64(a.Layout.Epoch))
	}
	return b
}

// attr takes an attr off the front; its Ino is 0.
func (d *decoder) attr() metadata.Attr {
	f := d.byte()
	if f > attrKnown {
		d.bad = true
	}
	a := metadata.Attr{Mode: d.uint32(), UID: d.uint32(), GID: d.uint32(), Size: d.size(), Nlink: 1}
	d.times(&a, f)
	if f&attrLinks != 0 {
		a.Nlink = d.uint32()
	}
	if f&attrLocal != 0 {
		a.Layout.Kind = metadata.Local
		a.Layout.Node = metadata.NodeID(d.uint16())
	}
	if f&attrSpilled != 0 {
		a.Layout.Kind = metadata.Spilled
		d.bad = d.bad || f&attrLocal != 0
	}
	if f&attrLayout != 0 {
		a.Layout.Copies = d.byte()
		a.Layout.ChunkSize = d.uint32()
		a.Layout.Width = d.uint16()
		a.Layout.Epoch = metadata.Epoch(d.uvarint())
	}
	return a
}

func (d *decoder) times(a *metadata.Attr, f byte) {
	unit := int64(second)
	if f&attrNanos != 0 {
		unit = 1
	}
	scaled := func() metadata.Time {
		v := d.varint()
		if v > math.MaxInt64/unit || v < math.MinInt64/unit {
			d.bad = true
		}
		return metadata.Time(v * unit)
	}
	a.Mtime = scaled()
	a.Atime, a.Ctime = a.Mtime, a.Mtime
	if f&attrAtime != 0 {
		a.Atime += scaled()
	}
	if f&attrCtime != 0 {
		a.Ctime += scaled()
	}
}

func fileType(mode uint32) uint32 { return mode & syscall.S_IFMT }

func isDir(mode uint32) bool { return fileType(mode) == syscall.S_IFDIR }

// decoder takes values off the front of b; bad stays set after the first that
// is cut short or out of range.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) byte() byte {
	if p := d.bytes(1); p != nil {
		return p[0]
	}
	return 0
}

// bytes takes n bytes, which stay part of the input; nil if there are fewer.
func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bounded(limit uint64) uint64 {
	v := d.uvarint()
	if v > limit {
		d.bad = true
		return 0
	}
	return v
}

func (d *decoder) uint32() uint32 { return uint32(d.bounded(math.MaxUint32)) }
func (d *decoder) uint16() uint16 { return uint16(d.bounded(math.MaxUint16)) }
func (d *decoder) size() int64    { return int64(d.bounded(math.MaxInt64)) }

func (d *decoder) ino() metadata.Ino {
	if p := d.bytes(8); p != nil {
		return metadata.Ino(binary.BigEndian.Uint64(p))
	}
	return 0
}
