package erofs

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"syscall"
)

// Writer writes one image. It is not safe for concurrent use. Directories are written in the order of their numbers. In
// each, names are entered in byte order with Enter, each after its node was written with Dir or Put; an earlier node
// may get a further name. Every directory except the root has one entry, in a directory with a smaller number.
type Writer struct {
	f      io.WriterAt
	parent []uint32 // parent of each directory; unnamed until its entry is written

	inodes stretch
	blocks stretch
	nodes  int64
	bytes  int64 // bytes of the files, for statfs

	dir   uint32 // the directory whose entries are being written
	last  string // last name in dir
	first uint32 // first block of dir
	block dirBlock
	buf   []byte
	xattr []byte
}

const unnamed = 1<<32 - 1

// New starts an image with dirs directories, including the root. All of f must be zeros.
func New(f io.WriterAt, dirs int64, root Node) (*Writer, error) {
	if dirs < 1 || dirs > MaxNodes {
		return nil, fmt.Errorf("image with %d directories: %w", dirs, syscall.EFBIG)
	}
	w := &Writer{f: f, parent: make([]uint32, dirs), nodes: dirs, first: blocksAt / blockSize}
	for i := range w.parent {
		w.parent[i] = unnamed
	}
	w.inodes = newStretch(f, rootOffset+dirs*inodeSize)
	w.blocks = newStretch(f, blocksAt)
	return w, w.putDir(0, 0, &root)
}

// stretch is a range of the file that is written front to back.
type stretch struct {
	w          *bufio.Writer
	begin, off int64
}

func newStretch(f io.WriterAt, off int64) stretch {
	return stretch{w: bufio.NewWriterSize(io.NewOffsetWriter(f, off), 256<<10), begin: off, off: off}
}

// write fails with EFBIG if the image becomes too large.
func (s *stretch) write(p []byte) error {
	if s.off-s.begin+int64(len(p)) > MaxBytes/2 {
		return fmt.Errorf("image of more than %d bytes: %w", int64(MaxBytes), syscall.EFBIG)
	}
	n, err := s.w.Write(p)
	s.off += int64(n)
	return err
}

var zeros [blockSize]byte

// pad advances to a multiple of unit.
func (s *stretch) pad(unit int64) error { return s.write(zeros[:(unit-s.off%unit)%unit]) }

// dirNode is the position of a directory.
func dirNode(number uint32) NodeID { return NodeID((rootOffset + int64(number)*inodeSize) / slotSize) }

// putDir writes the inode of a directory; the position of its entries is filled in by endDir.
func (w *Writer) putDir(number, parent uint32, n *Node) error {
	if err := n.check(); err != nil {
		return err
	}
	if n.kind() != syscall.S_IFDIR || int64(number) >= int64(len(w.parent)) || w.parent[number] != unnamed || len(n.Xattrs) > 0 {
		return fmt.Errorf("directory %d of %d, mode %o: %w", number, len(w.parent), n.Mode, syscall.EINVAL)
	}
	w.parent[number] = parent
	w.buf = appendInode(w.buf[:0], n, place{}, nil)
	_, err := w.f.WriteAt(w.buf, int64(dirNode(number))*slotSize)
	return err
}

// Dir writes the inode of a directory, whose name must be entered next. The directory has no extended attributes.
func (w *Writer) Dir(number uint32, n Node) (NodeID, error) {
	if number <= w.dir {
		return 0, fmt.Errorf("directory %d in directory %d: %w", number, w.dir, syscall.EINVAL)
	}
	return dirNode(number), w.putDir(number, w.dir, &n)
}

// Put writes a file or a symbolic link.
func (w *Writer) Put(n Node) (NodeID, error) {
	if err := n.check(); err != nil {
		return 0, err
	}
	if k := n.kind(); k != syscall.S_IFREG && k != syscall.S_IFLNK {
		return 0, fmt.Errorf("mode %o is neither a file nor a symbolic link: %w", n.Mode, syscall.EINVAL)
	}
	if w.nodes++; w.nodes > MaxNodes {
		return 0, fmt.Errorf("more than %d inodes: %w", MaxNodes, syscall.EFBIG)
	}
	w.bytes += min(n.Size, 1<<50)
	w.xattr = appendXattrs(w.xattr[:0], &n)
	at, inline, err := w.placeOf(&n)
	if err != nil {
		return 0, err
	}
	w.buf = append(appendInode(w.buf[:0], &n, at, w.xattr), inline...)
	return w.putInode(w.buf, inline != "")
}

// placeOf returns the place for the target of n: a block before the inode if it does not fit after the inode.
func (w *Writer) placeOf(n *Node) (at place, inline string, err error) {
	size := int64(len(n.Target))
	switch {
	case n.Target == "":
		return place{size: n.Size}, "", nil
	case inodeSize+len(w.xattr)+len(n.Target) <= blockSize:
		return place{layout: inlineData, size: size}, n.Target, nil
	}
	if err := w.inodes.pad(blockSize); err != nil {
		return place{}, "", err
	}
	at = place{layout: plainData, block: uint32(w.inodes.off / blockSize), size: size}
	return at, "", w.inodes.write([]byte(n.Target))
}

// putInode writes p, which must not cross a block boundary if it contains a target.
func (w *Writer) putInode(p []byte, inline bool) (NodeID, error) {
	unit := int64(slotSize)
	if next := (w.inodes.off + slotSize - 1) &^ (slotSize - 1); inline && next/blockSize != (next+int64(len(p))-1)/blockSize {
		unit = blockSize
	}
	if err := w.inodes.pad(unit); err != nil {
		return 0, err
	}
	id := NodeID(w.inodes.off / slotSize)
	return id, w.inodes.write(p)
}

// Begin ends the previous directory and begins dir.
func (w *Writer) Begin(dir uint32) error {
	if int64(dir) >= int64(len(w.parent)) || dir < w.dir {
		return fmt.Errorf("directory %d of %d behind directory %d: %w", dir, len(w.parent), w.dir, syscall.EINVAL)
	}
	for w.dir < dir {
		if err := w.endDir(); err != nil {
			return err
		}
		w.dir++
		if w.parent[w.dir] == unnamed {
			return fmt.Errorf("directory %d has no name: %w", w.dir, syscall.EINVAL)
		}
	}
	return nil
}

// Enter adds a name of a node of type mode to the current directory.
func (w *Writer) Enter(name string, id NodeID, mode uint32) error {
	if err := checkName(name); err != nil {
		return err
	}
	if name <= w.last {
		return fmt.Errorf("name %q behind %q: %w", name, w.last, syscall.EINVAL)
	}
	if err := w.dots(name); err != nil {
		return err
	}
	w.last = name
	return w.enter(name, id, mode)
}

// dots adds "." and ".." if they sort before name.
func (w *Writer) dots(name string) error {
	if w.block.dots == 0 && name > "." {
		w.block.dots++
		if err := w.enter(".", dirNode(w.dir), syscall.S_IFDIR); err != nil {
			return err
		}
	}
	if w.block.dots == 1 && name > ".." {
		w.block.dots++
		return w.enter("..", dirNode(w.parent[w.dir]), syscall.S_IFDIR)
	}
	return nil
}

func (w *Writer) enter(name string, id NodeID, mode uint32) error {
	if !w.block.fits(name) {
		w.buf = w.block.take(w.buf[:0])
		if err := w.blocks.write(w.buf); err != nil {
			return err
		}
		if err := w.blocks.pad(blockSize); err != nil {
			return err
		}
	}
	w.block.add(name, id, mode)
	return nil
}

// endDir writes the last block of a directory, and completes its inode.
func (w *Writer) endDir() error {
	if err := w.dots("\xff"); err != nil {
		return err
	}
	w.buf = w.block.take(w.buf[:0])
	err := w.blocks.write(w.buf)
	size := w.blocks.off - int64(w.first)*blockSize
	if err == nil {
		err = w.blocks.pad(blockSize)
	}
	if err != nil {
		return err
	}
	b := binary.LittleEndian.AppendUint64(w.buf[:0], uint64(size))
	b = binary.LittleEndian.AppendUint32(b, w.first)
	if _, err := w.f.WriteAt(b, int64(dirNode(w.dir))*slotSize+8); err != nil {
		return err
	}
	w.first = uint32(w.blocks.off / blockSize)
	w.block.dots, w.last = 0, ""
	return nil
}

// Finish completes the image and returns its size.
func (w *Writer) Finish() (int64, error) {
	if err := w.Begin(uint32(len(w.parent) - 1)); err != nil {
		return 0, err
	}
	if err := w.endDir(); err != nil {
		return 0, err
	}
	if err := w.inodes.w.Flush(); err != nil {
		return 0, err
	}
	if err := w.blocks.w.Flush(); err != nil {
		return 0, err
	}
	var b [superSize]byte
	le := binary.LittleEndian
	le.PutUint32(b[0:], magic)
	b[12] = blockBits
	le.PutUint16(b[14:], uint16(dirNode(0)))
	le.PutUint64(b[16:], uint64(w.nodes))
	// statfs on Linux shows this as the size of the dataset, not of its image.
	le.PutUint32(b[36:], uint32(min((w.bytes+blockSize-1)/blockSize, 1<<32-1)))
	_, err := w.f.WriteAt(b[:], superOffset)
	return w.blocks.off, err
}
