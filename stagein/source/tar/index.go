package tar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// The index of a tar is its members, so that who has it need not look for them.
// Its file is
//
//	magic    8 bytes  "BIVIDX" 00 03
//	size     8 bytes  of the archive
//	mtime    8 bytes  of the archive, in nanoseconds
//	ends    16 bytes  xxh3-128 of the archive's first and last 16 KiB
//	sum      8 bytes  xxh3 of what stands before
//	members           a stream of manifest records (metadata/manifest) without
//	                  owners, packed by zstd: in the order of the archive, each
//	                  with the offset of its data
//
// A tar with sparse members has no index.
//
// Numbers are big endian. What lies between the end of one member's data and the
// beginning of the next one's is the headers of the latter; so nothing is between
// members that the index does not know of, and who fetches a member can see
// whether its headers say what the index says (CheckHead).
const indexMagic = "BIVIDX\x00\x03"

const (
	indexHead  = 48
	indexEnd   = 16 << 10                            // bytes of each end of the archive that are in the key
	maxHeaders = 2 * (MaxSpecial + source.BlockSize) // of one member

	maxIndexWindow = 128 << 20 // bytes that the decoder remembers
)

// IndexKey is what an archive is known by.
type IndexKey struct {
	Size  int64 // bytes
	Mtime metadata.Time
	Ends  [16]byte
}

// KeyOf reads the ends of an archive that is what info says.
func KeyOf(f io.ReaderAt, name string, info source.Info) (IndexKey, error) {
	k := IndexKey{Size: info.Size, Mtime: info.Mtime}
	h := xxh3.New128()
	n := min(indexEnd, info.Size)
	b := make([]byte, n)
	for _, off := range []int64{0, max(info.Size-n, n)} { // no byte twice
		b = b[:min(n, info.Size-off)]
		if err := source.ReadFull(f, name, b, off); err != nil {
			return k, err
		}
		_, _ = h.Write(b) // cannot fail
	}
	k.Ends = h.Sum128().Bytes()
	return k, nil
}

func (k *IndexKey) append(b []byte) []byte {
	b = append(b, indexMagic...)
	b = binary.BigEndian.AppendUint64(b, uint64(k.Size))
	b = binary.BigEndian.AppendUint64(b, uint64(k.Mtime))
	b = append(b, k.Ends[:]...)
	return binary.BigEndian.AppendUint64(b, xxh3.Hash(b))
}

// WriteIndex writes the index of an archive that has all items that each hands out, in
// its order.
func WriteIndex(w io.Writer, k IndexKey, each func(fn func(it *source.Item) error) error) error {
	if _, err := w.Write(k.append(nil)); err != nil {
		return err
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	m := manifest.NewWriter(z)
	err = each(func(it *source.Item) error {
		r := manifest.Record{Path: it.Path, Target: it.Target, Hardlink: it.Hardlink, From: manifest.Origin{Off: it.Off}}
		r.Attr = metadata.Attr{Mode: it.Mode, Nlink: 1, Size: it.Size, Atime: it.Mtime, Mtime: it.Mtime, Ctime: it.Mtime}
		return m.Add(r)
	})
	if err == nil {
		err = m.Close()
	}
	return errors.Join(err, z.Close())
}

// ReadIndex reads the index, of n bytes, of the archive that is known by k, and gives
// its items to add, with Head and Check set; what it has given counts for nothing if there
// is an error. An index of another archive, or of what this one was
// before, is ESTALE; one that is damaged, or that no archive can have, EIO.
func ReadIndex(r io.Reader, n int64, k IndexKey, add func(it *source.Item) error) (err error) {
	defer func() {
		if bug := recover(); bug != nil { // of the decoder, which is not ours
			err = fmt.Errorf("the decoder gave up: %v: %w", bug, syscall.EIO)
		}
	}()
	if n > k.Size+indexEnd { // a record is no longer than the headers that it is of
		return fmt.Errorf("%d bytes of index for an archive of %d: %w", n, k.Size, syscall.EIO)
	}
	var head [indexHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return fmt.Errorf("is cut short: %w: %w", syscall.EIO, err)
	}
	if err := k.check(head[:]); err != nil {
		return err
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxIndexWindow))
	if err != nil {
		return fmt.Errorf("%w: %w", syscall.EIO, err)
	}
	defer z.Close()
	return k.members(manifest.NewReader(z), add)
}

// check compares the head of an index with what it should be.
func (k *IndexKey) check(head []byte) error {
	at := indexHead - 8
	magic := string(head[:8])
	switch was := xxh3.Hash(head[:at]); {
	case magic[:6] != indexMagic[:6]:
		return fmt.Errorf("is no index: %w", syscall.EIO)
	case magic != indexMagic:
		return fmt.Errorf("is of another version of this program: %w", syscall.ESTALE)
	case binary.BigEndian.Uint64(head[at:]) != was:
		return fmt.Errorf("is damaged: %w", syscall.EIO)
	case string(k.append(nil)) != string(head):
		return fmt.Errorf("is of another archive, or of what this one was before: %w", syscall.ESTALE)
	}
	return nil
}

func (k *IndexKey) members(r *manifest.Reader, add func(it *source.Item) error) error {
	for end := int64(0); ; {
		rec, err := r.Next()
		switch {
		case err == io.EOF && end == 0:
			return fmt.Errorf("has no members: %w", syscall.EIO)
		case err == io.EOF:
			return nil
		case errors.Is(err, syscall.EIO):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", syscall.EIO, err)
		}
		it, err := k.item(&rec, end)
		if err != nil {
			return fmt.Errorf("member %q at offset %d: %w: %w", rec.Path, rec.From.Off, err, syscall.EIO)
		}
		if err := add(&it); err != nil {
			return err
		}
		end = it.Off + source.Padded(it.Stored())
	}
}

// item is the member of a record, whose headers begin at off.
func (k *IndexKey) item(r *manifest.Record, off int64) (source.Item, error) {
	it := source.Item{
		Path: r.Path, Mode: r.Attr.Mode, Size: r.Attr.Size, Mtime: r.Attr.Mtime,
		Target: r.Target, Hardlink: r.Hardlink, Off: r.From.Off, Head: r.From.Off - off,
	}
	data := it.Is(source.TypeRegular) && it.Hardlink == ""
	switch {
	case !it.Is(source.TypeRegular) && !it.Is(source.TypeDir) && !it.Is(source.TypeSymlink), it.Mode&^(source.TypeMask|0o7777) != 0:
		return it, fmt.Errorf("a mode of %o", it.Mode)
	case it.Is(source.TypeSymlink) != (it.Target != ""), it.Hardlink != "" && !it.Is(source.TypeRegular), !data && it.Size != 0,
		it.Path == "" && !it.Is(source.TypeDir):
		return it, errors.New("is of no kind that there is")
	case it.Head < source.BlockSize, it.Head%source.BlockSize != 0, it.Off > k.Size,
		r.From.Sparse || it.Head > maxHeaders || it.Size > k.Size || it.Off+source.Padded(it.Size) > k.Size:
		return it, fmt.Errorf("headers of %d bytes and data of %d", it.Head, it.Size)
	case it.Head < int64(len(it.Path)+len(it.Target)+len(it.Hardlink)):
		return it, fmt.Errorf("headers of %d bytes, which cannot have its names", it.Head)
	}
	it.Check = Digest(&it)
	return it, nil
}

// Digest is of what the headers of a member say of it.
func Digest(i *source.Item) uint64 {
	b := make([]byte, 0, 256)
	for _, s := range []string{i.Path, i.Target, i.Hardlink} {
		b = append(append(b, s...), 0)
	}
	b = binary.BigEndian.AppendUint32(b, i.Mode)
	b = binary.BigEndian.AppendUint64(b, uint64(i.Size))
	return xxh3.Hash(binary.BigEndian.AppendUint64(b, uint64(i.Mtime)))
}

// CheckHead sees whether b, which stands before a member's data at off, is the
// headers of one member of that digest.
func CheckHead(b []byte, off int64, digest uint64) error {
	var g Group
	g.Reset(off - int64(len(b)))
	for at := 0; at+source.BlockSize <= len(b); at += source.BlockSize {
		step, err := g.Add(b[at : at+source.BlockSize])
		switch last := at+source.BlockSize == len(b); {
		case err != nil:
			return err
		case step == Member && last && Digest(&g.Item) == digest:
			return nil
		case step == Member:
			return fmt.Errorf("there is %q: %w", g.Item.Path, syscall.EBADMSG)
		case step == End:
			return fmt.Errorf("the archive ends at offset %d: %w", g.Start(), syscall.EBADMSG)
		case step == Skip:
			g.Reset(g.Pos())
		}
	}
	return fmt.Errorf("there are no headers at offset %d: %w", off-int64(len(b)), syscall.EBADMSG)
}
