package tar

import (
	"errors"
	"fmt"
	"io"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// EachExtent gives fn the extents of a sparse item as records: where one begins in the
// file, how long it is, and where it is in the archive.
func EachExtent(i *source.Item, fn func(manifest.Record) error) error {
	for _, e := range i.Sparse.Extents {
		r := manifest.Record{Path: i.Path, From: manifest.Origin{Off: i.Off + e.At}}
		r.Attr = metadata.Attr{Ino: metadata.Ino(e.Off), Nlink: 1, Size: e.Len}
		if err := fn(r); err != nil {
			return err
		}
	}
	return nil
}

// ExtentOf is the extent of the item that a record of EachExtent has.
func ExtentOf(i *source.Item, r *manifest.Record) source.Extent {
	return source.Extent{Off: int64(r.Attr.Ino), Len: r.Attr.Size, At: r.From.Off - i.Off}
}

// leastPair is the fewest bytes of headers that tell of an extent.
const leastPair = 4

// readExtents takes the map of a sparse item, which has n extents, from r. The archive is of
// size bytes.
func readExtents(i *source.Item, r *manifest.Reader, n uint64, size int64) error {
	if n > uint64(i.Head/leastPair) {
		return fmt.Errorf("%d extents in headers of %d bytes", n, i.Head)
	}
	s := &source.Sparse{Size: i.Size}
	for ; n > 0; n-- {
		rec, err := r.Next()
		if err == io.EOF {
			return errors.New("the map of its holes is cut short")
		}
		if err != nil {
			return err
		}
		e := ExtentOf(i, &rec)
		if rec.Path != i.Path || e.Len < 1 || e.Len > size-i.Off-s.Stored {
			return fmt.Errorf("an extent of %d bytes at %d", e.Len, rec.From.Off)
		}
		s.Extents, s.Stored = append(s.Extents, e), s.Stored+e.Len
	}
	if i.Off+source.Padded(s.Stored) > size {
		return fmt.Errorf("data of %d bytes", s.Stored)
	}
	if err := s.Check(); err != nil {
		return err
	}
	i.Sparse = s
	i.Check = Digest(i)
	return nil
}
