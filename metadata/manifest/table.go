package manifest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/varint"
)

func appendEntry(b []byte, a *metadata.Attr) []byte {
	b = binary.AppendUvarint(b, uint64(a.Ino.Part()))
	b = binary.AppendUvarint(b, uint64(a.Ino.Seq()))
	return appendAttr(b, a)
}

func parseEntry(ds metadata.DatasetID, b []byte) (metadata.Attr, error) {
	d := decoder{varint.Decoder{B: b}}
	ino := metadata.SealedIno(ds, d.Uint16(), d.Uint32())
	a := d.attr()
	a.Ino = ino
	if !d.Whole() {
		return metadata.Attr{}, fmt.Errorf("damaged entry: %w", syscall.EIO)
	}
	return a, nil
}

func appendInode(b []byte, r *Record) []byte {
	b = appendAttr(b, &r.Attr)
	f := r.flags() &^ (recordSame | recordChunks) // a table's inode has no path, and its chunks have their own key
	b = r.From.append(append(b, byte(f)), f)
	b = append(b, r.Target...)
	if f&recordSum != 0 {
		b = append(b, r.Sum[:]...)
	}
	return b
}

func parseInode(ino metadata.Ino, b []byte) (Record, error) {
	d := decoder{varint.Decoder{B: b}}
	r := Record{Attr: d.attr()}
	r.Attr.Ino = ino
	f := uint16(d.Byte())
	r.From = d.origin("", f)
	n := uint64(len(d.B))
	if f&recordSum != 0 {
		n -= uint64(len(r.Sum)) // underflows if there are fewer, which bytes rejects
	}
	r.Target = string(d.Bytes(n))
	copy(r.Sum[:], d.B)
	if d.Bad || f&^(recordTarget|recordSum|recordFrom|recordHead|recordZip|recordSparse) != 0 || f&recordTarget == 0 && r.Target != "" {
		return Record{}, fmt.Errorf("damaged inode %v: %w", ino, syscall.EIO)
	}
	return r, nil
}

// Table is the metadata.Store of a sealed dataset. It answers all reads from the table; all changes fail with EROFS.
type Table struct {
	kv  KV
	ds  metadata.DatasetID
	sum Summary
}

var _ metadata.Store = (*Table)(nil)

// Open returns the table of dataset ds in kv; ENOENT if none was ingested.
func Open(kv KV, ds metadata.DatasetID) (*Table, error) {
	v, err := kv.Get([]byte{keySummary})
	if err != nil {
		return nil, fmt.Errorf("manifest of dataset %d: %w", ds, err)
	}
	t := &Table{kv: kv, ds: ds}
	if t.sum, err = parseSummary(ds, v); err != nil {
		return nil, fmt.Errorf("manifest of dataset %d: %w", ds, err)
	}
	return t, nil
}

// Root returns the dataset's root directory.
func (t *Table) Root() metadata.Ino { return metadata.SealedIno(t.ds, metadata.DirPart, 0) }

// Summary returns the totals of the manifest; its maps must not be changed.
func (t *Table) Summary() Summary { return t.sum }

// Record returns the checksum and the attributes of ino; the checksum is zero if unknown. ENOENT if there is no
// such inode.
func (t *Table) Record(ino metadata.Ino) (sum [16]byte, a metadata.Attr, err error) {
	r, err := t.inode(ino)
	return r.Sum, r.Attr, err
}

// Chunks returns the CRC-32C of each chunk of a striped file; none if they are unknown.
func (t *Table) Chunks(ino metadata.Ino) (CRCs, error) {
	if !t.has(ino) {
		return "", fmt.Errorf("inode %v in dataset %d: %w", ino, t.ds, syscall.ENOENT)
	}
	v, err := t.kv.Get(chunksKey(ino))
	switch {
	case errors.Is(err, syscall.ENOENT):
		return "", nil
	case err == nil && len(v)%4 != 0:
		err = syscall.EIO
	}
	if err != nil {
		return "", fmt.Errorf("checksums of inode %v: %w", ino, err)
	}
	return CRCs(v), nil
}

// Origin returns the place of the bytes of ino in the source, and its attributes.
func (t *Table) Origin(ino metadata.Ino) (Origin, metadata.Attr, error) {
	r, err := t.inode(ino)
	return r.From, r.Attr, err
}

// Entries calls fn with every name until fn returns false, directory by directory in the order of their numbers, then
// by name. A directory's number is that of its inode, and greater than its parent's; every number between 0 and
// Summary.Dirs has a name, except the root's, 0. fn may keep its arguments.
func (t *Table) Entries(fn func(dir uint32, name string, a metadata.Attr) bool) error {
	var bad error
	err := t.kv.Scan([]byte{keyEntry}, []byte{keyEntry + 1}, func(k, v []byte) bool {
		var a metadata.Attr
		if a, bad = parseEntry(t.ds, v); bad != nil || len(k) < 6 {
			return false
		}
		return fn(binary.BigEndian.Uint32(k[1:]), string(k[5:]), a)
	})
	if err = errors.Join(bad, err); err != nil {
		return fmt.Errorf("entries of dataset %d: %w", t.ds, err)
	}
	return nil
}

// Files calls fn with every name of a regular file until fn returns false, in the order of Entries. dir is the
// directory's path, number its number. fn may keep its arguments.
func (t *Table) Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error {
	paths := make(map[uint32]string) // of the directories whose entries follow
	return t.Entries(func(dir uint32, name string, a metadata.Attr) bool {
		if isDir(a.Mode) {
			paths[a.Ino.Seq()] = strings.TrimPrefix(paths[dir]+"/"+name, "/")
			return true
		}
		return fileType(a.Mode) != syscall.S_IFREG || fn(paths[dir], dir, name, a)
	})
}

// Each is Files with whole paths.
func (t *Table) Each(fn func(path string, a metadata.Attr) bool) error {
	return t.Files(func(dir string, _ uint32, name string, a metadata.Attr) bool {
		return fn(strings.TrimPrefix(dir+"/"+name, "/"), a)
	})
}

// Located calls fn with every file whose bytes have an origin, by inode, until fn returns false. fn may keep its
// arguments.
func (t *Table) Located(fn func(from Origin, a metadata.Attr) bool) error {
	var bad error
	err := t.kv.Scan([]byte{keyInode}, []byte{keyInode + 1}, func(k, v []byte) bool {
		if len(k) == chunksKeySize {
			return true
		}
		if len(k) != inodeKeySize {
			bad = fmt.Errorf("damaged key %x: %w", k, syscall.EIO)
			return false
		}
		var r Record
		if r, bad = parseInode(metadata.SealedIno(t.ds, binary.BigEndian.Uint16(k[1:]), binary.BigEndian.Uint32(k[3:])), v); bad != nil {
			return false
		}
		return !r.From.Known() || fn(r.From, r.Attr)
	})
	if err = errors.Join(bad, err); err != nil {
		return fmt.Errorf("files of dataset %d: %w", t.ds, err)
	}
	return nil
}

func (t *Table) inode(ino metadata.Ino) (Record, error) {
	if !t.has(ino) {
		return Record{}, fmt.Errorf("inode %v in dataset %d: %w", ino, t.ds, syscall.ENOENT)
	}
	v, err := t.kv.Get(inodeKey(ino))
	if err != nil {
		return Record{}, fmt.Errorf("inode %v: %w", ino, err)
	}
	return parseInode(ino, v)
}

func (t *Table) has(ino metadata.Ino) bool { return ino.Sealed() && ino.Dataset() == t.ds }

// dir returns an error unless ino is a directory of the table. Directories are numbered without gaps, so no read is
// needed.
func (t *Table) dir(ino metadata.Ino) error {
	if t.has(ino) && ino.Part() == metadata.DirPart && int64(ino.Seq()) <= t.sum.Dirs {
		return nil
	}
	if _, err := t.inode(ino); err != nil {
		return err
	}
	return fmt.Errorf("inode %v: %w", ino, syscall.ENOTDIR)
}

// Lookup implements metadata.Namespace.
func (t *Table) Lookup(_ context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	if err := checkName(name); err != nil {
		return metadata.Entry{}, err
	}
	if err := t.dir(dir); err != nil {
		return metadata.Entry{}, err
	}
	v, err := t.kv.Get(entryKey(dir.Seq(), name))
	if err != nil {
		return metadata.Entry{}, fmt.Errorf("%q in %v: %w", name, dir, err)
	}
	a, err := parseEntry(t.ds, v)
	if err != nil {
		return metadata.Entry{}, fmt.Errorf("%q in %v: %w", name, dir, err)
	}
	return metadata.Entry{Name: name, Ino: a.Ino, Mode: a.Mode, Attr: &a}, nil
}

func checkName(name string) error {
	switch {
	case len(name) > metadata.MaxName:
		return fmt.Errorf("name of %d bytes %.32q...: %w", len(name), name, syscall.ENAMETOOLONG)
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("name %q: %w", name, syscall.EINVAL)
	}
	return nil
}

// ReadDir implements metadata.Namespace.
func (t *Table) ReadDir(ctx context.Context, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
	if limit <= 0 || len(after) > metadata.MaxName {
		return nil, fmt.Errorf("read of directory %v: limit %d, after %.32q: %w", dir, limit, after, syscall.EINVAL)
	}
	if err := t.dir(dir); err != nil {
		return nil, err
	}
	from := entryKey(dir.Seq(), after)
	if after != "" {
		from = append(from, 0)
	}
	var all []metadata.Entry
	var bad error
	err := t.kv.Scan(from, entriesEnd(dir.Seq()), func(k, v []byte) bool {
		var a metadata.Attr
		if a, bad = parseEntry(t.ds, v); bad != nil {
			return false
		}
		all = append(all, metadata.Entry{Name: string(k[5:]), Ino: a.Ino, Mode: a.Mode, Attr: &a})
		if e := ctx.Err(); e != nil {
			bad = fmt.Errorf("%w: %w", syscall.EINTR, e)
		}
		return bad == nil && len(all) < limit
	})
	if err = errors.Join(bad, err); err != nil {
		return nil, fmt.Errorf("read of directory %v: %w", dir, err)
	}
	return all, nil
}

func entriesEnd(dir uint32) []byte {
	if dir+1 == 0 {
		return []byte{keyEntry + 1}
	}
	return entryKey(dir+1, "")
}

// Getattr implements metadata.Inodes.
func (t *Table) Getattr(_ context.Context, ino metadata.Ino) (metadata.Attr, error) {
	r, err := t.inode(ino)
	return r.Attr, err
}

// Readlink implements metadata.Inodes.
func (t *Table) Readlink(_ context.Context, ino metadata.Ino) (string, error) {
	r, err := t.inode(ino)
	if err == nil && fileType(r.Attr.Mode) != syscall.S_IFLNK {
		err = fmt.Errorf("target of inode %v: %w", ino, syscall.EINVAL)
	}
	return r.Target, err
}
