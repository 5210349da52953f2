package manifest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// KV is the sorted table that stores a manifest.
type KV interface {
	// Ingest atomically replaces the table by the pairs that src yields, in ascending order of keys.
	Ingest(ctx context.Context, src func(yield func(k, v []byte) error) error) error
	// Get returns a value, owned by the caller; ENOENT if there is none.
	Get(k []byte) ([]byte, error)
	// Scan calls fn with the pairs of [from, to) until fn returns false; the pairs are valid until fn returns. A nil to
	// means the end.
	Scan(from, to []byte, fn func(k, v []byte) bool) error
}

// The first byte of a key.
const (
	keyEntry   = 0x01
	keyInode   = 0x02
	keySummary = 0x03
)

func entryKey(dir uint32, name string) []byte {
	k := make([]byte, 0, 5+len(name))
	k = binary.BigEndian.AppendUint32(append(k, keyEntry), dir)
	return append(k, name...)
}

const inodeKeySize, chunksKeySize = 7, 8

// chunksKey is the key of a file's chunk checksums, which follow its inode.
func chunksKey(ino metadata.Ino) []byte { return append(inodeKey(ino), 0) }

func inodeKey(ino metadata.Ino) []byte {
	k := make([]byte, 0, chunksKeySize)
	k = binary.BigEndian.AppendUint16(append(k, keyInode), ino.Part())
	return binary.BigEndian.AppendUint32(k, ino.Seq())
}

// Ingest atomically stores the manifest read from r in the table kv. It trusts no input: wrong order or numbering is
// EIO. It sorts in scratch, so its memory does not grow with the manifest.
func Ingest(ctx context.Context, kv KV, r *Reader, scratch *Scratch) (Summary, error) {
	in := ingester{r: r, dirs: queue{s: scratch}, inodes: newSorter(scratch)}
	defer in.close()
	if err := kv.Ingest(ctx, in.run); err != nil {
		return Summary{}, fmt.Errorf("ingest of a manifest: %w", err)
	}
	return in.sum, nil
}

// ingester is the state of an Ingest. Entries arrive in the order of the table; inodes must be sorted.
type ingester struct {
	r      *Reader
	ds     metadata.DatasetID
	sum    Summary
	dirs   queue  // directories whose entries follow, in order
	at     string // the directory of the current entries
	dir    uint32 // number of that directory
	seen   uint32 // directories so far
	last   string // last name in that directory
	buf    []byte
	inodes *sorter // by number: links 4 bytes, and the value
}

func (in *ingester) close() {
	in.dirs.close()
	in.inodes.close()
}

func (in *ingester) run(yield func(k, v []byte) error) error {
	root, err := in.r.Next()
	if err != nil {
		return fmt.Errorf("no root: %w", noEOF(err))
	}
	in.ds = root.Attr.Ino.Dataset()
	if root.Path != "" || !isDir(root.Attr.Mode) || root.Attr.Ino != in.dirIno() {
		return fmt.Errorf("%q, %v, is not the root of a dataset: %w", root.Path, root.Attr.Ino, syscall.EIO)
	}
	if err := in.inode(&root); err != nil {
		return err
	}
	for {
		r, err := in.r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := in.entry(&r, yield); err != nil {
			return err
		}
	}
	if err := in.yieldInodes(yield); err != nil {
		return err
	}
	in.sum.Digest = in.r.Digest()
	v, err := in.sum.encode(in.ds)
	if err != nil {
		return err
	}
	return yield([]byte{keySummary}, v)
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// dirIno returns the number of the next directory.
func (in *ingester) dirIno() metadata.Ino {
	return metadata.SealedIno(in.ds, metadata.DirPart, in.seen)
}

func (in *ingester) entry(r *Record, yield func(k, v []byte) error) error {
	dir, name := split(r.Path)
	if err := in.check(r); err != nil {
		return fmt.Errorf("%q: %w", r.Path, err)
	}
	for in.at != dir {
		next, err := in.dirs.pop()
		if err == io.EOF {
			return fmt.Errorf("%q is out of order: %w", r.Path, syscall.EIO)
		}
		if err != nil {
			return err
		}
		in.at, in.last = next, ""
		in.dir++
	}
	if name <= in.last {
		return fmt.Errorf("%q is out of order: %w", r.Path, syscall.EIO)
	}
	in.last = name
	if err := in.inode(r); err != nil {
		return err
	}
	in.buf = appendEntry(in.buf[:0], &r.Attr)
	return yield(entryKey(in.dir, name), in.buf)
}

func (in *ingester) check(r *Record) error {
	ino := r.Attr.Ino
	if !ino.Sealed() || ino.Dataset() != in.ds || r.Hardlink != "" || r.Path == "" {
		return fmt.Errorf("inode %v in dataset %d: %w", ino, in.ds, syscall.EIO)
	}
	switch fileType(r.Attr.Mode) {
	case syscall.S_IFDIR:
		if ino != in.dirIno() {
			return fmt.Errorf("directory %v, want %v: %w", ino, in.dirIno(), syscall.EIO)
		}
		return nil
	case syscall.S_IFREG, syscall.S_IFLNK:
		if ino.Part() != metadata.DirPart {
			return nil
		}
	}
	return fmt.Errorf("inode %v with mode %o: %w", ino, r.Attr.Mode, syscall.EIO)
}

// inode records the inode and the name of r.
func (in *ingester) inode(r *Record) error {
	if isDir(r.Attr.Mode) {
		if in.seen > 0 { // the first is the root, which starts the entries
			if err := in.dirs.push(r.Path); err != nil {
				return err
			}
		}
		in.seen++
	}
	if isDir(r.Attr.Mode) || r.Attr.Nlink == 1 {
		in.sum.add(r) // a file with several names is counted with its inode
	}
	in.buf = appendInode(binary.BigEndian.AppendUint32(in.buf[:0], r.Attr.Nlink), r)
	if err := in.inodes.add(inodeKey(r.Attr.Ino), in.buf); err != nil || len(r.Chunks) == 0 {
		return err
	}
	in.buf = append(append(in.buf[:0], 0, 0, 0, 0), r.Chunks...)
	return in.inodes.add(chunksKey(r.Attr.Ino), in.buf)
}

// yieldInodes yields the inodes in order. Names of one file must agree, and their number must equal its links.
func (in *ingester) yieldInodes(yield func(k, v []byte) error) error {
	n := oneInode{in: in, yield: yield}
	if err := in.inodes.each(n.name); err != nil {
		return err
	}
	return n.end()
}

// oneInode is the inode whose names are being read.
type oneInode struct {
	in    *ingester
	yield func(k, v []byte) error
	k, v  []byte // nil before the first
	names uint32
}

func (n *oneInode) name(k, v []byte) error {
	if n.k != nil && bytes.Equal(k, n.k) {
		if !bytes.Equal(v, n.v) {
			return fmt.Errorf("inode %x stands for two files: %w", k[1:], syscall.EIO)
		}
		n.names++
		return nil
	}
	if err := n.end(); err != nil {
		return err
	}
	n.k, n.v, n.names = append(n.k[:0], k...), append(n.v[:0], v...), 1
	return nil
}

func (n *oneInode) end() error {
	if n.k == nil {
		return nil
	}
	if len(n.k) == chunksKeySize {
		return n.yield(n.k, n.v[4:])
	}
	ino := metadata.SealedIno(n.in.ds, binary.BigEndian.Uint16(n.k[1:]), binary.BigEndian.Uint32(n.k[3:]))
	if links := binary.BigEndian.Uint32(n.v); ino.Part() != metadata.DirPart && links != n.names {
		return fmt.Errorf("inode %v has %d names, but %d links: %w", ino, n.names, links, syscall.EIO)
	}
	if n.names > 1 {
		r, err := parseInode(ino, n.v[4:])
		if err != nil {
			return err
		}
		n.in.sum.add(&r)
		n.in.sum.Links += int64(n.names - 1)
	}
	return n.yield(n.k, n.v[4:])
}
