package manifest

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Record is one path of a dataset.
type Record struct {
	Path     string        // relative and clean, without a leading slash; "" is the dataset's root
	Attr     metadata.Attr // Layout gives the place of the bytes
	Target   string        // of a symbolic link
	Hardlink string        // in parts only: the path of another name of the same file
	Sum      [16]byte      // xxh3-128 of the content, or a marked CRC-32C; zero if unknown
	From     Origin        // where the content is in the source; zero if unknown
	// Chunks has the CRC-32C of each chunk of a striped file, or of one that would be striped but stayed in the
	// source; empty if unknown.
	Chunks CRCs
}

// CRCs are CRC-32Cs, 4 bytes big endian each.
type CRCs string

// MaxChunks limits the chunks of a file whose checksums are stored.
const MaxChunks = 1 << 14

// Len returns the number of checksums.
func (c CRCs) Len() int { return len(c) / 4 }

// At returns checksum i.
func (c CRCs) At(i int) uint32 { return binary.BigEndian.Uint32([]byte(c[4*i:][:4])) }

// Origin is the place of a file's bytes in the source, so that a node can fetch them without help.
type Origin struct {
	Source uint32 // number of the source
	Off    int64  // offset of the data in a tar; 0 otherwise
	Path   string // of the file relative to a source directory; not with Off
	// Head is the size of the headers before Off that must match the digest Check when the file is fetched, because
	// they have not been read yet; 0 if they have.
	Head  int64
	Check uint64
	Zip   Zip // in a zip archive; zero otherwise
	// Sparse means that the headers in Head contain the map of a sparse file whose data begins at Off.
	Sparse bool
}

// Zip is the place of a file in a zip archive. The Off of its Origin follows the fixed part of the local header, which
// is the Head; Check covers the CRC-32s of its content and of its name.
type Zip struct {
	Span   int64  // bytes of the member from Off on: names, data and descriptor
	Packed int64  // bytes of its data
	Method uint16 // of compression
}

// Known reports whether the origin is known.
func (o Origin) Known() bool { return o.Off > 0 || o.Path != "" }

func (z Zip) bad() bool { return z.Span < 0 || z.Packed < 0 || z.Packed > z.Span }

// Limits of paths and targets, in bytes.
const (
	MaxPath   = 1<<15 - 1
	MaxTarget = 4095
)

// Flags of a record.
const (
	recordTarget = 1 << iota
	recordHardlink
	recordSum
	recordFrom
	recordSame // the path of the origin is the record's
	recordHead
	recordZip
	recordSparse
	recordChunks

	recordKnown = 1<<iota - 1
)

// check returns an error for an invalid record.
func (r *Record) check() error {
	if err := checkPath(r.Path); err != nil {
		return err
	}
	if r.Hardlink != "" {
		if err := checkPath(r.Hardlink); err != nil {
			return fmt.Errorf("%q is a hard link: %w", r.Path, err)
		}
	}
	switch {
	case len(r.Target) > MaxTarget:
		return fmt.Errorf("%q: target of %d bytes: %w", r.Path, len(r.Target), syscall.ENAMETOOLONG)
	case strings.Contains(r.Target, "\x00"):
		return fmt.Errorf("%q: target %q: %w", r.Path, r.Target, syscall.EINVAL)
	case r.From.Off < 0, r.From.Off > 0 && r.From.Path != "", len(r.From.Path) > MaxPath:
		return fmt.Errorf("%q: origin at %d of %.64q: %w", r.Path, r.From.Off, r.From.Path, syscall.EINVAL)
	case r.From.Head < 0 || r.From.Head > r.From.Off:
		return fmt.Errorf("%q: headers of %d bytes before offset %d: %w", r.Path, r.From.Head, r.From.Off, syscall.EINVAL)
	case r.From.Sparse && (r.From.Head == 0 || r.From.Zip != Zip{}):
		return fmt.Errorf("%q: sparse without headers of a tar: %w", r.Path, syscall.EINVAL)
	case r.From.Zip != Zip{} && r.From.Off == 0 || r.From.Zip.bad():
		return fmt.Errorf("%q: %+v in a zip archive: %w", r.Path, r.From.Zip, syscall.EINVAL)
	case r.Attr.Size < 0:
		return fmt.Errorf("%q: size %d: %w", r.Path, r.Attr.Size, syscall.EINVAL)
	}
	if n := int64(r.Chunks.Len()); r.Chunks != "" {
		chunk := r.Attr.Layout.Chunk()
		if n > MaxChunks || len(r.Chunks)%4 != 0 || !r.chunked() || chunk <= 0 || (r.Attr.Size-1)/chunk+1 != n {
			return fmt.Errorf("%q: checksums of %d chunks, of %d bytes in chunks of %d: %w", r.Path, n, r.Attr.Size, chunk, syscall.EINVAL)
		}
	}
	return nil
}

// chunked reports whether the file has chunks: it is striped, or would be striped if it had not stayed in the source.
func (r *Record) chunked() bool {
	l := &r.Attr.Layout
	return l.Kind == metadata.Striped || l.Kind == metadata.Overflow && l.ChunkSize > 0
}

func checkPath(p string) error {
	if p == "" {
		return nil
	}
	if len(p) > MaxPath {
		return fmt.Errorf("path of %d bytes %.64q...: %w", len(p), p, syscall.ENAMETOOLONG)
	}
	if strings.Contains(p, "\x00") {
		return fmt.Errorf("path %q: %w", p, syscall.EINVAL)
	}
	for rest, more := p, true; more; {
		var name string
		name, rest, more = strings.Cut(rest, "/")
		switch {
		case name == "" || name == "." || name == "..":
			return fmt.Errorf("path %q is not relative and clean: %w", p, syscall.EINVAL)
		case len(name) > metadata.MaxName:
			return fmt.Errorf("path %q has a name of %d bytes: %w", p, len(name), syscall.ENAMETOOLONG)
		}
	}
	return nil
}

// split splits a path into its directory and its name.
func split(p string) (dir, name string) {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i], p[i+1:]
	}
	return "", p
}

// append encodes r; before is the path of the previous record in the block.
func (r *Record) append(b []byte, before string) []byte {
	shared := 0
	for shared < len(before) && shared < len(r.Path) && before[shared] == r.Path[shared] {
		shared++
	}
	b = binary.AppendUvarint(b, uint64(r.flags()))
	b = binary.AppendUvarint(b, uint64(shared))
	b = appendText(b, r.Path[shared:])
	return r.appendBody(b)
}

// appendBody encodes the fields after the path.
func (r *Record) appendBody(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(r.Attr.Ino))
	b = appendAttr(b, &r.Attr)
	f := r.flags()
	if f&recordTarget != 0 {
		b = appendText(b, r.Target)
	}
	if f&recordHardlink != 0 {
		b = appendText(b, r.Hardlink)
	}
	if f&recordSum != 0 {
		b = append(b, r.Sum[:]...)
	}
	b = r.From.append(b, f)
	if f&recordChunks != 0 {
		b = append(binary.AppendUvarint(b, uint64(r.Chunks.Len())), r.Chunks...)
	}
	return b
}

func (o *Origin) append(b []byte, f uint16) []byte {
	if f&recordFrom == 0 {
		return b
	}
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(o.Source)), uint64(o.Off))
	if f&recordHead != 0 {
		b = binary.BigEndian.AppendUint64(binary.AppendUvarint(b, uint64(o.Head)), o.Check)
	}
	if f&recordZip != 0 {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(o.Zip.Span)), uint64(o.Zip.Packed))
		b = binary.AppendUvarint(b, uint64(o.Zip.Method))
	}
	if f&recordSame == 0 {
		b = appendText(b, o.Path)
	}
	return b
}

func (r *Record) flags() (f uint16) {
	if r.Target != "" {
		f |= recordTarget
	}
	if r.Hardlink != "" {
		f |= recordHardlink
	}
	if r.Sum != [16]byte{} {
		f |= recordSum
	}
	if len(r.Chunks) > 0 {
		f |= recordChunks
	}
	if r.From.Known() {
		f |= recordFrom
		if r.From.Path == r.Path {
			f |= recordSame
		}
		if r.From.Head > 0 {
			f |= recordHead
		}
		if r.From.Zip != (Zip{}) {
			f |= recordZip
		}
		if r.From.Sparse {
			f |= recordSparse
		}
	}
	return f
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// record decodes a record.
func (d *decoder) record(before string) Record {
	f := uint16(d.Bounded(recordKnown))
	shared := d.Bounded(uint64(len(before)))
	rest := d.Bytes(d.Bounded(MaxPath - shared))
	return d.body(before[:shared]+string(rest), f)
}

func (d *decoder) body(path string, f uint16) Record {
	r := Record{Path: path}
	ino := d.ino()
	r.Attr = d.attr()
	r.Attr.Ino = ino
	if f&recordTarget != 0 {
		r.Target = string(d.Bytes(d.Bounded(MaxTarget)))
	}
	if f&recordHardlink != 0 {
		r.Hardlink = string(d.Bytes(d.Bounded(MaxPath)))
	}
	if f&recordSum != 0 {
		copy(r.Sum[:], d.Bytes(uint64(len(r.Sum))))
	}
	r.From = d.origin(path, f)
	if f&recordChunks != 0 {
		n := d.Bounded(MaxChunks)
		r.Chunks = CRCs(d.Bytes(4 * n))
		d.Bad = d.Bad || n == 0
	}
	if d.Bad {
		return Record{}
	}
	return r
}

func (d *decoder) origin(path string, f uint16) (o Origin) {
	if f&recordFrom == 0 {
		d.Bad = d.Bad || f&(recordSame|recordHead|recordZip|recordSparse) != 0
		return o
	}
	o = Origin{Source: d.Uint32(), Off: d.Size(), Path: path}
	if f&recordHead != 0 {
		o.Head = d.Size()
		if b := d.Bytes(8); len(b) == 8 {
			o.Check = binary.BigEndian.Uint64(b)
		}
		d.Bad = d.Bad || o.Head == 0 || o.Head > o.Off
	}
	if f&recordZip != 0 {
		o.Zip = Zip{Span: d.Size(), Packed: d.Size(), Method: uint16(d.Bounded(math.MaxUint16))}
		d.Bad = d.Bad || o.Zip == (Zip{}) || o.Zip.bad() || o.Off == 0
	}
	o.Sparse = f&recordSparse != 0
	d.Bad = d.Bad || o.Sparse && (o.Head == 0 || o.Zip != Zip{})
	if f&recordSame == 0 {
		o.Path = string(d.Bytes(d.Bounded(MaxPath)))
	}
	d.Bad = d.Bad || !o.Known() || o.Off > 0 && o.Path != ""
	return o
}
