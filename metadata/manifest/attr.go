package manifest

import (
	"encoding/binary"
	"math"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/varint"
)

// The flags of an attr.
const (
	attrLinks = 1 << iota
	attrAtime
	attrCtime
	attrNanos
	attrLocal
	attrLayout
	attrOverflow

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
	if a.Layout.Kind == metadata.Overflow {
		f |= attrOverflow
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
	mtime := int64(a.Mtime) / unit
	b = binary.AppendVarint(b, mtime)
	if f&attrAtime != 0 {
		b = binary.AppendVarint(b, int64(a.Atime)/unit-mtime) // nanoseconds, modulo 2^64
	}
	if f&attrCtime != 0 {
		b = binary.AppendVarint(b, int64(a.Ctime)/unit-mtime)
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

// attr decodes an attr; its Ino is 0.
func (d *decoder) attr() metadata.Attr {
	f := d.Byte()
	if f > attrKnown {
		d.Bad = true
	}
	a := metadata.Attr{Mode: d.Uint32(), UID: d.Uint32(), GID: d.Uint32(), Size: d.Size(), Nlink: 1}
	d.times(&a, f)
	if f&attrLinks != 0 {
		a.Nlink = d.Uint32()
	}
	if f&attrLocal != 0 {
		a.Layout.Kind = metadata.Local
		a.Layout.Node = metadata.NodeID(d.Uint16())
	}
	if f&attrOverflow != 0 {
		a.Layout.Kind = metadata.Overflow
		d.Bad = d.Bad || f&attrLocal != 0
	}
	if f&attrLayout != 0 {
		a.Layout.Copies = d.Byte()
		a.Layout.ChunkSize = d.Uint32()
		a.Layout.Width = d.Uint16()
		a.Layout.Epoch = metadata.Epoch(d.Uvarint())
	}
	return a
}

func (d *decoder) times(a *metadata.Attr, f byte) {
	unit := int64(second)
	if f&attrNanos != 0 {
		unit = 1
	}
	mtime := int64(0)
	since := func() metadata.Time {
		v := mtime + d.Varint()
		if v > math.MaxInt64/unit || v < math.MinInt64/unit {
			d.Bad = true
		}
		return metadata.Time(v * unit)
	}
	a.Mtime = since()
	mtime = int64(a.Mtime) / unit
	a.Atime, a.Ctime = a.Mtime, a.Mtime
	if f&attrAtime != 0 {
		a.Atime = since()
	}
	if f&attrCtime != 0 {
		a.Ctime = since()
	}
}

func fileType(mode uint32) uint32 { return mode & syscall.S_IFMT }

func isDir(mode uint32) bool { return fileType(mode) == syscall.S_IFDIR }

// decoder decodes the values of this package.
type decoder struct{ varint.Decoder }

func (d *decoder) ino() metadata.Ino { return metadata.Ino(d.Fixed64()) }
