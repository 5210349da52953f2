package pebblestore

import (
	"encoding/binary"
	"fmt"
	"math"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// inode is a record under an inode key. text is the target of a symbolic link;
// parent and text are the entry that names a directory.
type inode struct {
	metadata.Attr
	parent metadata.Ino
	text   string
	xattrs uint32 // bytes that the names of its extended attributes take in a list
}

func (n *inode) isDir() bool { return isDir(n.Mode) }

func isDir(mode uint32) bool { return mode&syscall.S_IFMT == syscall.S_IFDIR }

const inodeVersion = 1

func (n *inode) append(b []byte) []byte {
	b = append(b, inodeVersion)
	b = binary.AppendUvarint(b, uint64(n.Mode))
	b = binary.AppendUvarint(b, uint64(n.Nlink))
	b = binary.AppendUvarint(b, uint64(n.UID))
	b = binary.AppendUvarint(b, uint64(n.GID))
	b = binary.AppendUvarint(b, uint64(n.Rdev))
	b = binary.AppendUvarint(b, uint64(n.Size))
	b = binary.AppendVarint(b, int64(n.Mtime))
	b = binary.AppendVarint(b, int64(n.Atime-n.Mtime))
	b = binary.AppendVarint(b, int64(n.Ctime-n.Mtime))
	b = appendLayout(b, n.Layout)
	b = binary.AppendUvarint(b, uint64(n.xattrs))
	b = binary.AppendUvarint(b, uint64(n.parent))
	return appendText(b, n.text)
}

func appendLayout(b []byte, l metadata.Layout) []byte {
	b = append(b, byte(l.Kind), l.Copies)
	b = binary.AppendUvarint(b, uint64(l.Node))
	b = binary.AppendUvarint(b, uint64(l.ChunkSize))
	b = binary.AppendUvarint(b, uint64(l.Width))
	return binary.AppendUvarint(b, uint64(l.Epoch))
}

func (d *decoder) layout() metadata.Layout {
	return metadata.Layout{
		Kind:      metadata.LayoutKind(d.byte()),
		Copies:    d.byte(),
		Node:      metadata.NodeID(d.uint16()),
		ChunkSize: d.uint32(),
		Width:     d.uint16(),
		Epoch:     metadata.Epoch(d.uvarint()),
	}
}

// parseInode reads the value b of the inode ino.
func parseInode(ino metadata.Ino, b []byte) (inode, error) {
	d := decoder{b: b}
	if d.byte() != inodeVersion {
		return inode{}, fmt.Errorf("record of inode %v: %w", ino, syscall.EIO)
	}
	n := inode{Attr: metadata.Attr{
		Ino:   ino,
		Mode:  d.uint32(),
		Nlink: d.uint32(),
		UID:   d.uint32(),
		GID:   d.uint32(),
		Rdev:  d.uint32(),
		Size:  d.size(),
		Mtime: metadata.Time(d.varint()),
	}}
	n.Atime = n.Mtime + metadata.Time(d.varint())
	n.Ctime = n.Mtime + metadata.Time(d.varint())
	n.Layout = d.layout()
	n.xattrs = d.uint32()
	n.parent = metadata.Ino(d.uvarint())
	n.text = d.text()
	if d.bad || len(d.b) != 0 {
		return inode{}, fmt.Errorf("record of inode %v: %w", ino, syscall.EIO)
	}
	return n, nil
}

// entry is what a name leads to; the zero entry is "no such name".
type entry struct {
	ino  metadata.Ino
	mode uint32
}

func (e entry) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(e.ino))
	return binary.AppendUvarint(b, uint64(e.mode))
}

func parseEntry(b []byte) (entry, error) {
	if len(b) < 8 {
		return entry{}, syscall.EIO
	}
	d := decoder{b: b[8:]}
	e := entry{ino: metadata.Ino(binary.BigEndian.Uint64(b)), mode: d.uint32()}
	if d.bad || len(d.b) != 0 || e.ino == 0 {
		return entry{}, syscall.EIO
	}
	return e, nil
}

// decoder takes values off the front of b; bad stays set after the first that
// is cut short or out of range.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
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

func (d *decoder) fixed64() uint64 {
	if len(d.b) < 8 {
		d.bad, d.b = true, nil
		return 0
	}
	v := binary.BigEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

func (d *decoder) text() string {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.bad = true
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}
