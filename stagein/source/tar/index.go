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

// The index of a tar lists its members, so that the next job need not search for them. The file format:
//
//	magic    8 bytes  "BIVIDX" 00 03
//	size     8 bytes  of the archive
//	mtime    8 bytes  of the archive, in nanoseconds
//	ends    16 bytes  xxh3-128 of the archive's first and last 16 KiB
//	sum      8 bytes  xxh3 of all of the above
//	members           a zstd stream of manifest records (metadata/manifest)
//	                  without owners, in the order of the archive, each with the
//	                  offset of its data
//
// A tar with sparse members has no index.
//
// Numbers are big endian. The bytes between the data of two members are headers of the second one. So the index covers
// everything between members, and a reader of a member can compare its headers with the index (CheckHead).
const indexMagic = "BIVIDX\x00\x03"

const (
	indexHead  = 48
	indexEnd   = 16 << 10                             // bytes at each end of the archive that are hashed
	maxHeaders = 2 * (MaxExtended + source.BlockSize) // of one member

	maxIndexWindow = 128 << 20 // window limit of the decoder, in bytes
)

// IndexKey identifies the state of an archive.
type IndexKey struct {
	Size  int64 // bytes
	Mtime metadata.Time
	Ends  [16]byte
}

// KeyOf computes the key of an archive from its attributes and both ends.
func KeyOf(f io.ReaderAt, name string, info source.Info) (IndexKey, error) {
	k := IndexKey{Size: info.Size, Mtime: info.Mtime}
	h := xxh3.New128()
	n := min(indexEnd, info.Size)
	b := make([]byte, n)
	for _, off := range []int64{0, max(info.Size-n, n)} { // reads no byte twice
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

// WriteIndex writes the index of an archive from the items that each yields in their order.
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

// ReadIndex reads the index, of n bytes, of the archive with key k, and passes its items to add, with Head and
// Check set. After an error the items passed so far are void. The error is ESTALE if the index belongs to another
// archive or an earlier state of it, EIO if it is damaged or impossible.
func ReadIndex(r io.Reader, n int64, k IndexKey, add func(it *source.Item) error) (err error) {
	defer func() {
		if bug := recover(); bug != nil { // in the decoder library
			err = fmt.Errorf("the decoder panicked: %v: %w", bug, syscall.EIO)
		}
	}()
	if n > k.Size+indexEnd { // a record is never longer than the headers that it describes
		return fmt.Errorf("%d bytes of index for an archive of %d: %w", n, k.Size, syscall.EIO)
	}
	var head [indexHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return fmt.Errorf("is truncated: %w: %w", syscall.EIO, err)
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

// check compares the head of an index with the key.
func (k *IndexKey) check(head []byte) error {
	at := indexHead - 8
	switch magic := string(head[:8]); {
	case magic[:6] != indexMagic[:6]:
		return fmt.Errorf("is not an index: %w", syscall.EIO)
	case magic != indexMagic:
		return fmt.Errorf("was written by another version of bivouac: %w", syscall.ESTALE)
	case binary.BigEndian.Uint64(head[at:]) != xxh3.Hash(head[:at]):
		return fmt.Errorf("is damaged: %w", syscall.EIO)
	case string(k.append(nil)) != string(head):
		return fmt.Errorf("belongs to another archive, or to an earlier version of this one: %w", syscall.ESTALE)
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

// item converts the record of a member whose headers begin at off.
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
		return it, errors.New("has an impossible type")
	case it.Head < source.BlockSize, it.Head%source.BlockSize != 0, it.Off > k.Size,
		r.From.Sparse || it.Head > maxHeaders || it.Size > k.Size || it.Off+source.Padded(it.Size) > k.Size:
		return it, fmt.Errorf("headers of %d bytes and data of %d", it.Head, it.Size)
	case it.Head < int64(len(it.Path)+len(it.Target)+len(it.Hardlink)):
		return it, fmt.Errorf("headers of %d bytes, too short for its names", it.Head)
	}
	it.Check = Digest(&it)
	return it, nil
}

// Digest returns a hash of everything that a member's headers state.
func Digest(i *source.Item) uint64 {
	b := make([]byte, 0, 256)
	for _, s := range []string{i.Path, i.Target, i.Hardlink} {
		b = append(append(b, s...), 0)
	}
	b = binary.BigEndian.AppendUint32(b, i.Mode)
	b = binary.BigEndian.AppendUint64(b, uint64(i.Size))
	return xxh3.Hash(binary.BigEndian.AppendUint64(b, uint64(i.Mtime)))
}

// CheckHead checks that b, which precedes a member's data at off, consists of the headers of a single member with the
// given digest.
func CheckHead(b []byte, off int64, digest uint64) error {
	var g Parser
	g.Reset(off - int64(len(b)))
	for at := 0; at+source.BlockSize <= len(b); at += source.BlockSize {
		step, err := g.Add(b[at : at+source.BlockSize])
		switch last := at+source.BlockSize == len(b); {
		case err != nil:
			return err
		case step == Member && last && Digest(&g.Item) == digest:
			return nil
		case step == Member:
			return fmt.Errorf("the headers are those of %q: %w", g.Item.Path, syscall.EBADMSG)
		case step == End:
			return fmt.Errorf("the archive ends at offset %d: %w", g.Start(), syscall.EBADMSG)
		case step == Skip:
			g.Reset(g.Pos())
		}
	}
	return fmt.Errorf("no headers at offset %d: %w", off-int64(len(b)), syscall.EBADMSG)
}
