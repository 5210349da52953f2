package stagein

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

// unpacking is a compressed tar that is unpacked from a restart point on.
type unpacking struct {
	name string
	u    *unpack.Unpacked
	p    *source.Piece // the last that came; nil is none that is held
	pos  int64         // in what it unpacks to; what is before it was gone over
}

// unpacking begins at the restart point before off. What lies from end on need not be there.
func (s *stretch) unpacking(ctx context.Context, bufs pools, off, end int64) (*unpacking, error) {
	part := unpack.Stretch{File: s.file, Name: s.name, Kind: s.kind, Size: s.was.Size, Points: s.points, Off: off, End: end}
	u := part.Unpack(ctx, bufs.in, bufs.out)
	if u == nil {
		return nil, fmt.Errorf("%s: it has no restart point before offset %d: %w", s.name, off, syscall.EIO)
	}
	return &unpacking{name: s.name, u: u, pos: off}, nil
}

func (x *unpacking) close() {
	if x.p != nil {
		x.p.Release()
	}
	x.u.Close()
}

// read gives do the bytes [off, end), which are not before pos, with where they lie.
func (x *unpacking) read(off, end int64, do func(b []byte, at int64) error) error {
	for off < end {
		if x.p != nil && x.p.End() <= off {
			x.p.Release()
			x.p = nil
		}
		if x.p == nil {
			p, err := x.u.Next()
			if errors.Is(err, io.EOF) {
				return fmt.Errorf("%s: unpacks to less than it did: %w", x.name, syscall.ESTALE)
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
		off, x.pos = to, to
	}
	return nil
}

// contents gives do all bytes of the file that s is, of size bytes, which lies in x.
func (s *stretch) contents(x *unpacking, size int64, do func(b []byte, pos int64) error) error {
	if !s.sparse {
		return x.read(s.base, s.base+size, func(b []byte, at int64) error { return do(b, at-s.base) })
	}
	m, err := s.mapIn(x)
	if err != nil {
		return err
	}
	return s.pour(x, m, 0, size, do)
}

// mapIn is where the data of a sparse file lies in it, by its headers, which come next in x.
func (s *stretch) mapIn(x *unpacking) (*source.Sparse, error) {
	at := s.base - min(s.head, tar.MaxHeaders)
	var head []byte
	if err := x.read(at, s.base, func(b []byte, _ int64) error { head = append(head, b...); return nil }); err != nil {
		return nil, err
	}
	m, err := tar.SparseIn(head, at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	return m, nil
}

// pour gives do the bytes [pos, pos+n) of a sparse file, holes as zeros.
func (s *stretch) pour(x *unpacking, m *source.Sparse, pos, n int64, do func(b []byte, pos int64) error) error {
	fill := filler{pos, pos + n, do}
	from, to := m.Within(pos, pos+n)
	if err := x.read(s.base+from, s.base+to, func(b []byte, at int64) error { return m.Pour(at-s.base, b, fill.data) }); err != nil {
		return err
	}
	return fill.zeros(pos + n)
}
