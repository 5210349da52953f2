package manifest

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// KV is the sorted table that a manifest is kept in.
type KV interface {
	// Ingest replaces the table, all or nothing, by the pairs that src
	// yields, whose keys ascend.
	Ingest(ctx context.Context, src func(yield func(k, v []byte) error) error) error
	// Get returns a value, which is the caller's; ENOENT if there is none.
	Get(k []byte) ([]byte, error)
	// Scan calls fn with the pairs of [from, to) until it returns false;
	// they are valid until fn returns. A nil to is the end.
	Scan(from, to []byte, fn func(k, v []byte) bool) error
}

// The first byte of a table's keys.
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

func inodeKey(ino metadata.Ino) []byte {
	k := make([]byte, 0, 7)
	k = binary.BigEndian.AppendUint16(append(k, keyInode), ino.Part())
	return binary.BigEndian.AppendUint32(k, ino.Seq())
}

// Ingest turns the manifest that r reads into the table kv: all of it, or
// nothing. It trusts nothing that it reads: what is not in the order of a
// manifest, or numbered otherwise, is EIO.
func Ingest(ctx context.Context, kv KV, r *Reader) (Summary, error) {
	in := ingester{r: r}
	if err := kv.Ingest(ctx, in.run); err != nil {
		return Summary{}, fmt.Errorf("ingest of a manifest: %w", err)
	}
	return in.sum, nil
}

// ingester is one Ingest under way. The entries are in the order of the table
// already; the inodes are kept until they can be sorted.
type ingester struct {
	r      *Reader
	ds     metadata.DatasetID
	sum    Summary
	dirs   []string // directories whose entries are still to come, in order
	dir    uint32   // number of the first of dirs
	seen   uint32   // directories so far
	last   string   // name before, in the first of dirs
	buf    []byte
	inodes inodes
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
	in.add(&root)
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
	if err := in.inodes.yield(yield); err != nil {
		return err
	}
	in.sum.Digest, in.sum.linked = in.r.Digest(), nil
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

// dirIno is the number of the next directory.
func (in *ingester) dirIno() metadata.Ino {
	return metadata.SealedIno(in.ds, metadata.DirPart, in.seen)
}

func (in *ingester) entry(r *Record, yield func(k, v []byte) error) error {
	dir, name := split(r.Path)
	if err := in.check(r); err != nil {
		return fmt.Errorf("%q: %w", r.Path, err)
	}
	for len(in.dirs) > 0 && in.dirs[0] != dir {
		in.dirs, in.last = in.dirs[1:], ""
		in.dir++
	}
	if len(in.dirs) == 0 || name <= in.last {
		return fmt.Errorf("%q is out of order: %w", r.Path, syscall.EIO)
	}
	in.last = name
	in.add(r)
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

func (in *ingester) add(r *Record) {
	if isDir(r.Attr.Mode) {
		in.dirs = append(in.dirs, r.Path)
		in.seen++
	}
	in.sum.add(r)
	in.buf = appendInode(in.buf[:0], r)
	in.inodes.add(r.Attr.Ino, r.Attr.Nlink, in.buf)
}

// inodes is the inodes of a manifest in little space.
type inodes struct {
	refs  []inodeRef
	arena [][]byte
}

type inodeRef struct {
	ino   metadata.Ino
	chunk uint32
	off   uint32
	n     uint32
	nlink uint32
}

const arenaChunk = 1 << 20

func (s *inodes) add(ino metadata.Ino, nlink uint32, v []byte) {
	last := len(s.arena) - 1
	if last < 0 || len(s.arena[last])+len(v) > cap(s.arena[last]) {
		s.arena = append(s.arena, make([]byte, 0, max(arenaChunk, len(v))))
		last++
	}
	s.refs = append(s.refs, inodeRef{ino, uint32(last), uint32(len(s.arena[last])), uint32(len(v)), nlink})
	s.arena[last] = append(s.arena[last], v...)
}

func (s *inodes) value(r inodeRef) []byte { return s.arena[r.chunk][r.off : r.off+r.n] }

// yield hands out the inodes in order. Names of one file must agree, and there
// must be as many as it has links.
func (s *inodes) yield(yield func(k, v []byte) error) error {
	slices.SortFunc(s.refs, func(a, b inodeRef) int { return cmp.Compare(a.ino, b.ino) })
	for i := 0; i < len(s.refs); {
		r, v := s.refs[i], s.value(s.refs[i])
		j := i + 1
		for j < len(s.refs) && s.refs[j].ino == r.ino {
			if string(s.value(s.refs[j])) != string(v) {
				return fmt.Errorf("inode %v stands for two files: %w", r.ino, syscall.EIO)
			}
			j++
		}
		if r.ino.Part() != metadata.DirPart && uint32(j-i) != r.nlink {
			return fmt.Errorf("inode %v has %d names, but %d links: %w", r.ino, j-i, r.nlink, syscall.EIO)
		}
		if err := yield(inodeKey(r.ino), v); err != nil {
			return err
		}
		i = j
	}
	return nil
}
