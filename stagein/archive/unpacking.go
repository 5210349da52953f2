package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
)

// Unpacking is a pass over a compressed tar, unpacked from its beginning.
type Unpacking struct {
	name string
	u    *unpack.Stream
	p    *source.Piece // the current piece, held; nil: none
	Pos  int64         // unpacked offset of the next byte that read can return
}

// Unpack starts unpacking the archive that contains the file.
func (s *Content) Unpack(ctx context.Context, bufs Buffers) *Unpacking {
	return &Unpacking{name: s.Name, u: s.Stream(ctx, bufs)}
}

// Stream returns the unpacked data of the archive.
func (s *Content) Stream(ctx context.Context, bufs Buffers) *unpack.Stream {
	from := source.ReadRegion(ctx, s.Src, s.Name, 0, s.Was.Size, bufs.In, ReadAhead)
	return unpack.Open(ctx, s.Kind, nil, from, bufs.Out)
}

// Close stops the decoder.
func (x *Unpacking) Close() {
	if x.p != nil {
		x.p.Release()
	}
	x.u.Close()
}

// read calls do with the bytes [off, end) and their offsets. off must be at least Pos.
func (x *Unpacking) read(off, end int64, do func(b []byte, at int64) error) error {
	for off < end {
		if x.p != nil && x.p.End() <= off {
			x.p.Release()
			x.p = nil
		}
		if x.p == nil {
			p, err := x.u.Next()
			if errors.Is(err, io.EOF) {
				return fmt.Errorf("%s: unpacked size shrank since the scan: the archive has changed: %w", x.name, syscall.ESTALE)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", x.name, err)
			}
			x.p = p
			continue
		}
		to := min(x.p.End(), end)
		if err := do(x.p.B[off-x.p.Off:to-x.p.Off], off); err != nil {
			return err
		}
		off, x.Pos = to, to
	}
	return nil
}

// ReadFile calls do with all bytes of the file s, which has size bytes and lies in x.
func (s *Content) ReadFile(x *Unpacking, size int64, do func(b []byte, pos int64) error) error {
	if !s.sparse {
		return x.read(s.Base, s.Base+size, func(b []byte, at int64) error { return do(b, at-s.Base) })
	}
	m, err := s.mapOf(x)
	if err != nil {
		return err
	}
	fill := NewHoleFiller(0, size, do)
	from, to := m.Within(0, size)
	if err := x.read(s.Base+from, s.Base+to, func(b []byte, at int64) error { return m.Pour(at-s.Base, b, fill.Data) }); err != nil {
		return err
	}
	return fill.Zeros(size)
}

// mapOf reads the headers of a sparse file, which are next in x, and returns the map of its data.
func (s *Content) mapOf(x *Unpacking) (*source.Sparse, error) {
	at := s.Base - min(s.Head, tar.MaxHeaders)
	var head []byte
	if err := x.read(at, s.Base, func(b []byte, _ int64) error { head = append(head, b...); return nil }); err != nil {
		return nil, err
	}
	m, err := tar.SparseIn(head, at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	return m, nil
}
