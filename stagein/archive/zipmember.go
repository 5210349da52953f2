package archive

import (
	"context"
	"fmt"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/zip"
)

// ZipOrigin returns the origin of an item of the zip archive with the number n.
func ZipOrigin(it *source.Item, n uint32) manifest.Origin {
	return manifest.Origin{
		Source: n, Off: it.Off + zip.LocalSize, Head: zip.LocalSize, Check: uint64(it.Zip.CRC)<<32 | uint64(it.Zip.Name),
		Zip: manifest.Zip{Span: it.Zip.Span, Packed: it.Zip.Size, Method: it.Zip.Method},
	}
}

// ZipItem returns the item of a file of size bytes at an origin in a zip archive.
func ZipItem(from *manifest.Origin, size int64) *source.Item {
	return &source.Item{Mode: source.TypeRegular, Size: size, Off: from.Off - zip.LocalSize, Zip: source.ZipMember{
		Size: from.Zip.Packed, Method: from.Zip.Method, CRC: uint32(from.Check >> 32), Name: uint32(from.Check), Span: from.Zip.Span,
	}}
}

// Buffers is a pool for reads and one for unpacked bytes. They are separate because a decoder holds buffers of one
// while it waits for the other.
type Buffers struct{ In, Out *source.Pool }

func NewBuffers(n, size int) Buffers {
	return Buffers{source.NewPool(n, size), source.NewPool(max(n/2, MinPieces), size)}
}

// Unzip calls do to read the data of a member of the archive.
func (s *Content) Unzip(ctx context.Context, p Buffers, it *source.Item, do func(z *Unzipper) error) error {
	end := it.Off + zip.LocalSize + it.Zip.Span
	from := source.ReadRegion(ctx, s.Src, s.Name, it.Off, end, p.In, ReadAhead)
	defer from.Close()
	z := &Unzipper{Ctx: ctx, Pool: p.Out, From: BlockReader{Pos: it.Off, More: from.Next}}
	defer z.Close()
	return z.Member(it, end, func() error { return do(z) })
}

// readZip is Read for a member of a zip archive. It unpacks the whole member.
func (s *Content) readZip(ctx context.Context, p Buffers, pos, n int64, do func(b []byte, pos int64) error) error {
	at := int64(0)
	err := s.Unzip(ctx, p, s.member, func(z *Unzipper) error {
		return z.Data(s.member, func(b []byte, _ *source.Piece) error {
			from, end := max(at, pos), min(at+int64(len(b)), pos+n)
			begin := at
			at += int64(len(b))
			if from >= end {
				return nil
			}
			return do(b[from-begin:end-begin], from)
		})
	})
	if err != nil {
		return fmt.Errorf("%s: at offset %d: %w", s.Name, s.member.Off, err)
	}
	return s.Unchanged()
}
