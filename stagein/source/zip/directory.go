package zip

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// The compression methods that are supported.
const (
	Stored   = 0
	Deflated = 8
)

// Index is the content of a central directory.
type Index struct {
	Items []source.Item // sorted by Off
	Start int64         // offset of the central directory; all members lie before it
	Read  int64         // bytes that were read to build the index
}

// Signatures and sizes of the records of a zip archive, in bytes.
const (
	localMagic      = 0x04034b50
	entryMagic      = 0x02014b50
	endMagic        = 0x06054b50
	end64Magic      = 0x06064b50
	locatorMagic    = 0x07064b50
	descriptorMagic = 0x08074b50

	// LocalSize is the size of a local header without its name and extra fields.
	LocalSize   = 30
	entrySize   = 46
	endSize     = 22
	end64Size   = 56
	locatorSize = 20

	descriptorSize = 24 // at most
)

// MaxDirectory is the size limit of a central directory, in bytes.
const MaxDirectory = 1 << 30

// Read reads the central directory of the zip archive f of size bytes, whose first bytes are head. It reads no data
// of a member, except for those just before the directory of a small archive with a comment. A member that cannot
// be staged, as err says, is left out if leave returns true; a nil leave never does.
func Read(f io.ReaderAt, name string, size int64, head []byte, leave func(member string, err error) bool) (*Index, error) {
	if leave == nil {
		leave = func(string, error) bool { return false }
	}
	t := &tail{f: f, name: name, head: head, size: size, off: size, leave: leave}
	x, err := t.index()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := x.check(leave); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	x.Read = t.read
	return x, nil
}

// tail is the end of an archive, from off. It is read backwards.
type tail struct {
	f         io.ReaderAt
	name      string
	head      []byte
	size, off int64
	b         []byte
	read      int64
	leave     func(member string, err error) bool
}

// back extends the tail down to off.
func (t *tail) back(off int64) error {
	if off >= t.off {
		return nil
	}
	b := make([]byte, t.size-off)
	have := int64(copy(b, t.head[min(off, int64(len(t.head))):]))
	if from := off + have; from < t.off {
		if err := source.ReadFull(t.f, t.name, b[have:t.off-off], from); err != nil {
			return err
		}
		t.read += t.off - from
	}
	copy(b[t.off-off:], t.b)
	t.b, t.off = b, off
	return nil
}

func (t *tail) from(off int64) []byte { return t.b[off-t.off:] }

// endRecord is the end-of-central-directory record, which locates the directory.
type endRecord struct {
	disk, dirDisk, here, all, size, off uint64
	end                                 int64 // where the directory must end
}

func (t *tail) index() (*Index, error) {
	end, err := t.findEnd()
	if err != nil {
		return nil, err
	}
	w, err := t.readEnd(end)
	if err != nil {
		return nil, err
	}
	switch {
	case w.disk != 0 || w.dirDisk != 0 || w.here != w.all:
		return nil, fmt.Errorf("is part of a multi-disk zip archive: join it by \"zip -s 0\": %w", syscall.EINVAL)
	case w.off > uint64(w.end) || w.size != uint64(w.end)-w.off:
		return nil, fmt.Errorf("the central directory at offset %d of %d bytes does not end where its end record is, at offset %d: the archive is damaged: copy it again: %w",
			w.off, w.size, w.end, syscall.EBADMSG)
	case w.size > MaxDirectory:
		return nil, fmt.Errorf("the central directory has %d bytes, at most %d are supported: split the archive: %w", w.size, MaxDirectory, syscall.EINVAL)
	case w.all > w.size/entrySize:
		return nil, fmt.Errorf("%d members in a central directory of %d bytes: the archive is damaged: copy it again: %w", w.all, w.size, syscall.EBADMSG)
	case w.all == 0 && w.size == 0:
		return nil, fmt.Errorf("the archive has no members: %w", syscall.EINVAL)
	}
	x := &Index{Start: int64(w.off), Items: make([]source.Item, 0, w.all)}
	if err := t.back(x.Start); err != nil {
		return nil, err
	}
	return x, x.parse(t.from(x.Start)[:w.size], int(w.all), t.leave)
}

// findEnd searches for the end record, which a comment may follow.
func (t *tail) findEnd() (int64, error) {
	for _, n := range []int64{endSize, 1 << 10, endSize + math.MaxUint16} {
		if err := t.back(max(t.size-n, 0)); err != nil {
			return 0, err
		}
		for i := len(t.b) - endSize; i >= 0; i-- {
			b := t.b[i:]
			if u32(b) == endMagic && int(u16(b[20:])) == len(b)-endSize {
				return t.off + int64(i), nil
			}
		}
	}
	return 0, fmt.Errorf("no central directory at the end of the zip archive, at offset %d: it is truncated or damaged, or something follows its end: copy it again: %w",
		t.size, syscall.EBADMSG)
}

// readEnd reads the end record at end, and the zip64 record if there is one.
func (t *tail) readEnd(end int64) (endRecord, error) {
	b := t.from(end)
	w := endRecord{
		uint64(u16(b[4:])), uint64(u16(b[6:])), uint64(u16(b[8:])), uint64(u16(b[10:])), uint64(u32(b[12:])), uint64(u32(b[16:])), end,
	}
	full := w.disk == math.MaxUint16 || w.dirDisk == math.MaxUint16 || w.here == math.MaxUint16 || w.all == math.MaxUint16 ||
		w.size == math.MaxUint32 || w.off == math.MaxUint32
	at := end - locatorSize
	if !full || at < 0 {
		return w, nil
	}
	if err := t.back(at); err != nil {
		return w, err
	}
	b = t.from(at)
	if u32(b) != locatorMagic {
		return w, nil
	}
	if u32(b[4:]) != 0 || u32(b[16:]) > 1 {
		w.disk = 1
		return w, nil
	}
	end64 := u64(b[8:])
	bad := fmt.Errorf("the zip64 end record of the central directory is not at offset %d: the archive is damaged: copy it again: %w", end64, syscall.EBADMSG)
	if end64 > uint64(at) || at-int64(end64) < end64Size {
		return w, bad
	}
	if at-int64(end64) > MaxDirectory {
		return w, bad
	}
	if err := t.back(int64(end64)); err != nil {
		return w, err
	}
	b = t.from(int64(end64))
	if u32(b) != end64Magic || u64(b[4:]) != uint64(at)-end64-12 {
		return w, bad
	}
	return endRecord{
		uint64(u32(b[16:])), uint64(u32(b[20:])), u64(b[24:]), u64(b[32:]), u64(b[40:]), u64(b[48:]), int64(end64),
	}, nil
}

func (x *Index) parse(b []byte, n int, leave func(string, error) bool) error {
	for i := range n {
		if len(b) < entrySize || u32(b) != entryMagic {
			return fmt.Errorf("entry %d of the central directory is invalid: the archive is damaged: copy it again: %w", i, syscall.EBADMSG)
		}
		e := entry{b: b}
		if e.end() > len(b) {
			return fmt.Errorf("entry %d of the central directory runs over its end: the archive is damaged: copy it again: %w", i, syscall.EBADMSG)
		}
		b = b[e.end():]
		it, err := e.item()
		if err == nil {
			x.Items = append(x.Items, it)
			continue
		}
		if err = fmt.Errorf("member %q at offset %d: %w", e.name(), it.Off, err); !leave(e.name(), err) {
			return source.Advise(err)
		}
	}
	if len(b) > 0 {
		return fmt.Errorf("%d bytes after the last entry of the central directory: the archive is damaged: copy it again: %w", len(b), syscall.EBADMSG)
	}
	return nil
}

// check sorts the items and refuses overlaps and duplicate names. If leave allows a duplicate, the last one is kept,
// but a directory in preference to a file.
func (x *Index) check(leave func(string, error) bool) error {
	slices.SortStableFunc(x.Items, func(a, b source.Item) int { return cmp.Compare(a.Off, b.Off) })
	for i := range x.Items {
		it := &x.Items[i]
		next, what := x.Start, "the central directory"
		if i+1 < len(x.Items) {
			next, what = x.Items[i+1].Off, fmt.Sprintf("member %q", x.Items[i+1].Path)
		}
		if it.Off > next || it.Zip.Size > next || it.Off+LocalSize > next-it.Zip.Size {
			return fmt.Errorf("member %q at offset %d overlaps %s at offset %d: %w", it.Path, it.Off, what, next, syscall.EBADMSG)
		}
		it.Zip.Span = min(next-it.Off-LocalSize, it.Zip.Size+2*math.MaxUint16+descriptorSize)
	}
	seen := make(map[string]*source.Item, len(x.Items))
	var out map[*source.Item]bool
	for i := range x.Items {
		it := &x.Items[i]
		old, twice := seen[it.Path]
		if !twice || old.Is(source.TypeDir) && it.Is(source.TypeDir) {
			seen[it.Path] = it
			continue
		}
		stays := it
		if old.Is(source.TypeDir) {
			stays, old = old, it
		}
		seen[it.Path] = stays
		if err := fmt.Errorf("member %q at offset %d: its name occurs twice: %w", it.Path, old.Off, syscall.EEXIST); !leave(it.Path, err) {
			return source.Advise(err)
		}
		if out == nil {
			out = make(map[*source.Item]bool)
		}
		out[old] = true
	}
	x.drop(out)
	return nil
}

// drop removes items.
func (x *Index) drop(out map[*source.Item]bool) {
	kept := x.Items[:0]
	for i := range x.Items {
		if !out[&x.Items[i]] {
			kept = append(kept, x.Items[i])
		}
	}
	x.Items = kept
}

// CheckLocal checks the local header b, of LocalSize bytes, against the central directory. It returns the lengths
// of the name and of the extra fields.
func CheckLocal(i *source.Item, b []byte) (name, extra int64, err error) {
	switch {
	case u32(b) != localMagic:
		return 0, 0, fmt.Errorf("no local header at the offset in the central directory: the archive is damaged: copy it again: %w", syscall.EBADMSG)
	case u16(b[6:])&flagEncrypted != 0:
		return 0, 0, fmt.Errorf("is encrypted: %w", syscall.EINVAL)
	case u16(b[8:]) != i.Zip.Method:
		return 0, 0, fmt.Errorf("its local header has method %d, the central directory has %d: the archive is damaged: %w", u16(b[8:]), i.Zip.Method, syscall.EBADMSG)
	}
	if !HasDescriptor(b) {
		packed, size := int64(u32(b[18:])), int64(u32(b[22:]))
		lie := packed != math.MaxUint32 && packed != i.Zip.Size || size != math.MaxUint32 && size != i.Size
		if lie || u32(b[14:]) != i.Zip.CRC {
			return 0, 0, fmt.Errorf("its local header and the central directory differ in sizes or checksum: the archive is damaged: %w", syscall.EBADMSG)
		}
	}
	return int64(u16(b[26:])), int64(u16(b[28:])), nil
}

// HasDescriptor reports whether a data descriptor follows the data of the member with the local header b.
func HasDescriptor(b []byte) bool { return u16(b[6:])&flagDescriptor != 0 }

// CheckName checks the name in the local header.
func CheckName(i *source.Item, name []byte) error {
	if crc32.ChecksumIEEE(name) != i.Zip.Name {
		return fmt.Errorf("its local header names %q: the archive is damaged: %w", name, syscall.EBADMSG)
	}
	return nil
}

// CheckDescriptor checks the data descriptor that follows a member's data.
func CheckDescriptor(i *source.Item, b []byte) error {
	if len(b) >= 8 && u32(b) == descriptorMagic && u32(b[4:]) == i.Zip.CRC || len(b) >= 4 && u32(b) == i.Zip.CRC {
		return nil
	}
	return fmt.Errorf("the data descriptor and the central directory differ in the checksum: the archive is damaged: %w", syscall.EBADMSG)
}

func u16(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }
func u32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func u64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// extras calls f for each extra field until f returns false.
func extras(b []byte, f func(id uint16, data []byte) bool) {
	for len(b) >= 4 {
		n := int(u16(b[2:]))
		if n > len(b)-4 || !f(u16(b), b[4:4+n]) {
			return // padding, as in APK files, or harmless damage
		}
		b = b[4+n:]
	}
}

// memberName returns the name of an entry: the UTF-8 from an extra field if it belongs to the same name, otherwise the
// raw bytes.
func memberName(raw, extra []byte) string {
	name := string(raw)
	extras(extra, func(id uint16, b []byte) bool {
		if id != 0x7075 {
			return true
		}
		if len(b) > 5 && b[0] == 1 && u32(b[1:]) == crc32.ChecksumIEEE(raw) && !bytes.ContainsRune(b[5:], 0) {
			name = string(b[5:])
		}
		return false
	})
	return name
}
