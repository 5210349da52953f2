package pebblestore

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/varint"
)

// inode is the record of an inode. text is the target of a symbolic link; for a directory, parent and text name its
// entry.
type inode struct {
	metadata.Attr
	parent metadata.Ino
	text   string
	xattrs uint32 // bytes of the names of its extended attributes in a list
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

func takeLayout(d *varint.Decoder) metadata.Layout {
	return metadata.Layout{
		Kind:      metadata.LayoutKind(d.Byte()),
		Copies:    d.Byte(),
		Node:      metadata.NodeID(d.Uint16()),
		ChunkSize: d.Uint32(),
		Width:     d.Uint16(),
		Epoch:     metadata.Epoch(d.Uvarint()),
	}
}

// parseInode reads the value b of the inode ino.
func parseInode(ino metadata.Ino, b []byte) (inode, error) {
	d := varint.Decoder{B: b}
	if d.Byte() != inodeVersion {
		return inode{}, fmt.Errorf("record of inode %v: %w", ino, syscall.EIO)
	}
	n := inode{Attr: metadata.Attr{
		Ino:   ino,
		Mode:  d.Uint32(),
		Nlink: d.Uint32(),
		UID:   d.Uint32(),
		GID:   d.Uint32(),
		Rdev:  d.Uint32(),
		Size:  d.Size(),
		Mtime: metadata.Time(d.Varint()),
	}}
	n.Atime = n.Mtime + metadata.Time(d.Varint())
	n.Ctime = n.Mtime + metadata.Time(d.Varint())
	n.Layout = takeLayout(&d)
	n.xattrs = d.Uint32()
	n.parent = metadata.Ino(d.Uvarint())
	n.text = d.Text()
	if !d.Whole() {
		return inode{}, fmt.Errorf("record of inode %v: %w", ino, syscall.EIO)
	}
	return n, nil
}

// entry is the value of a name; the zero entry is a missing name.
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
	d := varint.Decoder{B: b[8:]}
	e := entry{ino: metadata.Ino(binary.BigEndian.Uint64(b)), mode: d.Uint32()}
	if !d.Whole() || e.ino == 0 {
		return entry{}, syscall.EIO
	}
	return e, nil
}
