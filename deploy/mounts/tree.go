package mounts

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/erofs"
)

// A tree is the daemon's description of a dataset for the helper of a view. It comes from
// the user, so everything in it is checked.
//
//	magic    8 bytes   "BIVVIEW" 01
//	dirs     4 bytes   directories, the root among them
//	records            the root, then every name, ordered by directory number and name
//	length   2 bytes   0: the end
//
//	length   2 bytes   of the rest of the record
//	dir      4 bytes   number of the directory that has the name; 0 for the root
//	ino      8 bytes
//	mode, nlink, uid, gid   4 bytes each
//	size, mtime             8 bytes each; nanoseconds
//	name     1 byte length, then the bytes; none for the root
//	node     1 byte length, then the bytes: the nodes that have the file
//	target   the rest, of a symbolic link
//
// Numbers are little endian. A directory's number is its inode's in its part.
const treeMagic = "BIVVIEW\x01"

// recordHead is the size of a record's fixed part, in bytes.
const recordHead = 4 + 8 + 4*4 + 2*8

// maxLinked bounds the inodes with several names in a view.
const maxLinked = 1 << 20

// Named is a name of a dataset.
type Named struct {
	Dir    uint32 // number of the directory
	Name   string
	Attr   metadata.Attr
	Target string // of a symbolic link
	Node   string // value of user.bivouac.node, of a file
}

// TreeWriter writes the description of a dataset.
type TreeWriter struct {
	w   *bufio.Writer
	buf []byte
}

// NewTree writes the number of directories, including the root, and the root.
func NewTree(w io.Writer, dirs uint32, root metadata.Attr) (*TreeWriter, error) {
	t := &TreeWriter{w: bufio.NewWriterSize(w, 64<<10)}
	if _, err := t.w.Write(binary.LittleEndian.AppendUint32([]byte(treeMagic), dirs)); err != nil {
		return nil, err
	}
	return t, t.Add(Named{Attr: root})
}

// Add writes one name.
func (t *TreeWriter) Add(n Named) error {
	if len(n.Name) > metadata.MaxName || len(n.Target) > erofs.MaxTarget {
		return fmt.Errorf("name %.300q: %w", n.Name, syscall.ENAMETOOLONG)
	}
	if len(n.Node) > math.MaxUint8 {
		n.Node = ""
	}
	le, a := binary.LittleEndian, &n.Attr
	b := le.AppendUint16(t.buf[:0], uint16(recordHead+2+len(n.Name)+len(n.Node)+len(n.Target)))
	b = le.AppendUint32(b, n.Dir)
	b = le.AppendUint64(b, uint64(a.Ino))
	for _, v := range []uint32{a.Mode, a.Nlink, a.UID, a.GID} {
		b = le.AppendUint32(b, v)
	}
	b = le.AppendUint64(b, uint64(a.Size))
	b = le.AppendUint64(b, uint64(a.Mtime))
	b = append(append(b, byte(len(n.Name))), n.Name...)
	b = append(append(b, byte(len(n.Node))), n.Node...)
	t.buf = append(b, n.Target...)
	_, err := t.w.Write(t.buf)
	return err
}

// End ends the tree.
func (t *TreeWriter) End() error {
	if _, err := t.w.Write([]byte{0, 0}); err != nil {
		return err
	}
	return t.w.Flush()
}

// treeReader reads the output of a TreeWriter.
type treeReader struct {
	r   *bufio.Reader
	buf []byte
}

func badTree(what string) error { return fmt.Errorf("tree of a view: %s: %w", what, syscall.EBADMSG) }

// begin reads the number of directories, and the root.
func (t *treeReader) begin(r io.Reader) (dirs uint32, root Named, err error) {
	t.r = bufio.NewReaderSize(r, 256<<10)
	var head [len(treeMagic) + 4]byte
	if _, err := io.ReadFull(t.r, head[:]); err != nil {
		return 0, root, fmt.Errorf("tree of a view: %w", err)
	}
	if string(head[:len(treeMagic)]) != treeMagic {
		return 0, root, badTree("bad magic")
	}
	root, more, err := t.next()
	if err == nil && !more {
		err = badTree("no root")
	}
	return binary.LittleEndian.Uint32(head[len(treeMagic):]), root, err
}

// next reads the next name; more is false at the end.
func (t *treeReader) next() (n Named, more bool, err error) {
	var length [2]byte
	if _, err := io.ReadFull(t.r, length[:]); err != nil {
		return n, false, fmt.Errorf("tree of a view: %w", err)
	}
	size := int(binary.LittleEndian.Uint16(length[:]))
	if size == 0 {
		return n, false, nil
	}
	if cap(t.buf) < size {
		t.buf = make([]byte, size)
	}
	b := t.buf[:size]
	if _, err := io.ReadFull(t.r, b); err != nil {
		return n, false, fmt.Errorf("tree of a view: %w", err)
	}
	if size < recordHead+2 {
		return n, false, badTree("short record")
	}
	n, ok := parseNamed(b)
	if !ok {
		return n, false, badTree("damaged record")
	}
	return n, true, nil
}

// parseNamed parses a record, which has at least recordHead bytes.
func parseNamed(b []byte) (n Named, ok bool) {
	le, a := binary.LittleEndian, &n.Attr
	n.Dir, a.Ino = le.Uint32(b), metadata.Ino(le.Uint64(b[4:]))
	for i, v := range []*uint32{&a.Mode, &a.Nlink, &a.UID, &a.GID} {
		*v = le.Uint32(b[12+4*i:])
	}
	a.Size, a.Mtime = int64(le.Uint64(b[28:])), metadata.Time(le.Uint64(b[36:]))
	if n.Name, b, ok = text(b[recordHead:]); !ok || !a.Ino.Sealed() {
		return n, false
	}
	n.Node, b, ok = text(b)
	n.Target = string(b)
	return n, ok
}

// text removes a length and that many bytes from the front of b.
func text(b []byte) (s string, rest []byte, ok bool) {
	if len(b) == 0 || len(b)-1 < int(b[0]) {
		return "", nil, false
	}
	n := 1 + int(b[0])
	return string(b[1:n]), b[n:], true
}

// writeImage writes the image of the tree in r to f. It returns the size of the image and the inode of the root.
func writeImage(f io.WriterAt, r io.Reader) (size int64, root metadata.Ino, err error) {
	var t treeReader
	dirs, top, err := t.begin(r)
	if err != nil {
		return 0, 0, err
	}
	w, err := erofs.New(f, int64(dirs), nodeOf(&top))
	if err != nil {
		return 0, 0, err
	}
	im := image{w: w, linked: make(map[metadata.Ino]erofs.NodeID)}
	for {
		n, more, err := t.next()
		if err != nil {
			return 0, 0, err
		}
		if !more {
			size, err := w.Finish()
			return size, top.Attr.Ino, err
		}
		if err := im.add(&n); err != nil {
			return 0, 0, fmt.Errorf("tree of a view: %.300q in directory %d: %w", n.Name, n.Dir, err)
		}
	}
}

// image is an image under construction.
type image struct {
	w      *erofs.Writer
	linked map[metadata.Ino]erofs.NodeID // files with several names
}

func (im *image) add(n *Named) error {
	if err := im.w.Begin(n.Dir); err != nil {
		return err
	}
	id, err := im.put(n)
	if err != nil {
		return err
	}
	return im.w.Enter(n.Name, id, n.Attr.Mode)
}

func (im *image) put(n *Named) (erofs.NodeID, error) {
	ino := n.Attr.Ino
	if n.Attr.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return im.w.Dir(ino.Seq(), nodeOf(n))
	}
	if id, ok := im.linked[ino]; ok {
		return id, nil
	}
	id, err := im.w.Put(nodeOf(n))
	if err == nil && n.Attr.Nlink > 1 {
		if len(im.linked) >= maxLinked {
			return 0, fmt.Errorf("more than %d files with several names: %w", maxLinked, syscall.EFBIG)
		}
		im.linked[ino] = id
	}
	return id, err
}

// nodeOf returns the node of n. The path of the data depends on the inode number alone.
func nodeOf(n *Named) erofs.Node {
	a := &n.Attr
	node := erofs.Node{Mode: a.Mode, Nlink: a.Nlink, UID: a.UID, GID: a.GID, Mtime: int64(a.Mtime), Target: n.Target}
	if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return node
	}
	if node.Size = a.Size; a.Size != 0 {
		node.Redirect = ObjectPath(a.Ino)
	}
	if n.Node != "" {
		node.Xattrs = []erofs.Xattr{{Name: "bivouac.node", Value: n.Node}}
	}
	return node
}

// ObjectPath returns the path of a file's data in the layers of a view, as in package chunkstore.
func ObjectPath(ino metadata.Ino) string {
	return fmt.Sprintf("/%02x/%016x", uint8(ino), uint64(ino))
}
