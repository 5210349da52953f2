package erofs

import (
	"encoding/binary"
	"fmt"
	"strings"
	"syscall"
)

// Offsets and sizes, in bytes.
const (
	blockSize   = 4096
	slotSize    = 32 // unit of a node id
	superOffset = 1024
	superSize   = 128
	inodeSize   = 64
	rootOffset  = superOffset + superSize
	headSize    = 12 // of an entry without its name, and of the header of extended attributes
	blocksAt    = 64 << 30
)

// Values of fields.
const (
	magic        = 0xE0F5E1E2
	blockBits    = 12
	extended     = 1      // bit 0 of an inode's format: the inode has 64 bytes
	plainData    = 0 << 1 // the data is in whole blocks
	inlineData   = 2 << 1 // the data follows the inode
	userXattr    = 1      // the namespace of an attribute
	trustedXattr = 4
)

// Limits of an image.
const (
	MaxNodes  = 1 << 24 // inodes
	MaxBytes  = 4 << 30 // bytes written, without the hole
	MaxName   = 255     // bytes of a name
	MaxTarget = 4095    // bytes of a target
	MaxXattrs = 2048    // bytes of the extended attributes of a node, and of a redirect
)

// Node is a file, a directory or a symbolic link.
type Node struct {
	Mode     uint32 // type and permissions
	Nlink    uint32
	UID, GID uint32
	Size     int64   // of a file
	Mtime    int64   // nanoseconds since 1970; the only timestamp
	Target   string  // of a symbolic link
	Redirect string  // of a file that is not empty: the path of its data in the lower layers
	Xattrs   []Xattr // in the namespace user
}

// Xattr is an extended attribute, named without the namespace.
type Xattr struct{ Name, Value string }

// NodeID is the position of an inode.
type NodeID uint64

func (n *Node) kind() uint32 { return n.Mode & syscall.S_IFMT }

func (n *Node) check() error {
	total := len(n.Redirect)
	for _, x := range n.Xattrs {
		total += len(x.Name) + len(x.Value)
		if x.Name == "" || len(x.Name) > MaxName || strings.Contains(x.Name, "\x00") {
			return fmt.Errorf("attribute %.64q: %w", x.Name, syscall.EINVAL)
		}
	}
	link := n.kind() == syscall.S_IFLNK
	switch {
	case n.Mode>>16 != 0 || n.Size < 0 || total > MaxXattrs || len(n.Xattrs) > MaxXattrs/8:
		return fmt.Errorf("mode %o, size %d, attributes of %d bytes: %w", n.Mode, n.Size, total, syscall.EINVAL)
	case n.Redirect != "" && (n.kind() != syscall.S_IFREG || n.Redirect[0] != '/'), n.kind() == syscall.S_IFREG && (n.Redirect == "") != (n.Size == 0):
		return fmt.Errorf("mode %o, size %d, data at %q: %w", n.Mode, n.Size, n.Redirect, syscall.EINVAL)
	case link != (n.Target != "") || len(n.Target) > MaxTarget || strings.Contains(n.Target, "\x00"):
		return fmt.Errorf("mode %o, target %.64q: %w", n.Mode, n.Target, syscall.EINVAL)
	}
	return nil
}

func checkName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > MaxName || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("name %.300q: %w", name, syscall.EINVAL)
	}
	return nil
}

// place is the position of the data as stored in the inode.
type place struct {
	layout uint16
	block  uint32
	size   int64
}

// appendInode appends n with its extended attributes x.
func appendInode(b []byte, n *Node, at place, x []byte) []byte {
	le := binary.LittleEndian
	count := uint16(0)
	if len(x) > 0 {
		count = uint16((len(x)-headSize)/4 + 1)
	}
	b = le.AppendUint16(b, extended|at.layout)
	b = le.AppendUint16(b, count)
	b = le.AppendUint16(b, uint16(n.Mode))
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, uint64(at.size))
	b = le.AppendUint32(b, at.block)
	b = le.AppendUint32(b, 0) // inode number for 32-bit programs, unused by Linux
	b = le.AppendUint32(b, n.UID)
	b = le.AppendUint32(b, n.GID)
	sec, nsec := n.Mtime/1e9, n.Mtime%1e9
	if nsec < 0 {
		sec, nsec = sec-1, nsec+1e9
	}
	b = le.AppendUint64(b, uint64(sec))
	b = le.AppendUint32(b, uint32(nsec))
	b = le.AppendUint32(b, n.Nlink)
	b = append(b, make([]byte, 16)...)
	return append(b, x...)
}

// appendXattrs appends the extended attributes of n with their header, or nothing.
func appendXattrs(b []byte, n *Node) []byte {
	if n.Redirect == "" && len(n.Xattrs) == 0 {
		return b
	}
	b = append(b, make([]byte, headSize)...)
	if n.Redirect != "" {
		b = appendXattr(b, trustedXattr, Xattr{Name: "overlay.metacopy"})
		b = appendXattr(b, trustedXattr, Xattr{"overlay.redirect", n.Redirect})
	}
	for _, x := range n.Xattrs {
		b = appendXattr(b, userXattr, x)
	}
	return b
}

func appendXattr(b []byte, space byte, x Xattr) []byte {
	b = append(b, byte(len(x.Name)), space)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(x.Value)))
	b = append(append(b, x.Name...), x.Value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
