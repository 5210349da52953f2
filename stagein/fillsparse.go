package stagein

import (
	"context"

	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// filler gives do the stretch [pos, end) of a sparse file from its front to its
// back, holes as zeros.
type filler struct {
	pos, end int64
	do       func(b []byte, pos int64) error
}

// noBytes is what holes are read as.
var noBytes = make([]byte, 64<<10)

// isHole reports whether b came out of a hole.
func isHole(b []byte) bool { return len(b) > 0 && &b[0] == &noBytes[0] }

func (f *filler) data(b []byte, pos int64) error {
	if err := f.zeros(pos); err != nil {
		return err
	}
	f.pos = pos + int64(len(b))
	return f.do(b, pos)
}

// zeros gives the hole up to pos.
func (f *filler) zeros(pos int64) error {
	for f.pos < pos {
		b := noBytes[:min(int64(len(noBytes)), pos-f.pos)]
		if err := f.do(b, f.pos); err != nil {
			return err
		}
		f.pos += int64(len(b))
	}
	return nil
}

// idle reports whether b, which lies at pos, need not be stored: it is of a hole
// that ends before the stretch does.
func (f *filler) idle(b []byte, pos int64) bool {
	return isHole(b) && pos+int64(len(b)) < f.end
}

// holey is each for a sparse member of a tar: its headers tell where its data is.
func (s *stretch) holey(ctx context.Context, bufs pools, pos, n int64, do func(b []byte, pos int64) error) error {
	head := make([]byte, min(s.head, tar.MaxHeaders))
	if err := source.ReadFull(s.file, s.name, head, s.base-int64(len(head))); err != nil {
		return err
	}
	m, err := tar.SparseIn(head, s.base-int64(len(head)))
	if err != nil {
		return err
	}
	fill := filler{pos, pos + n, do}
	from, to := m.Within(pos, pos+n)
	err = s.pieces(ctx, bufs.in, from, to-from, func(p *source.Piece) error { return m.Pour(p.Off-s.base, p.B, fill.data) })
	if err != nil {
		return err
	}
	return fill.zeros(pos + n)
}

// holeyIn is holey for a member of a compressed tar.
func (s *stretch) holeyIn(ctx context.Context, bufs pools, pos, n int64, do func(b []byte, pos int64) error) error {
	x, err := s.unpacking(ctx, bufs, s.base-s.head, s.base+pos+n)
	if err != nil {
		return err
	}
	defer x.close()
	m, err := s.mapIn(x)
	if err != nil {
		return err
	}
	if err := s.pour(x, m, pos, n, do); err != nil {
		return err
	}
	return s.same()
}

// holes is a parcel of a sparse member, once its headers were read.
type holes struct {
	m        *source.Sparse
	from, to int64 // of the data
	fill     filler
}

// keepSparse stores what p has of a part of a sparse member, and reports whether
// that was the last of it.
func (f *Fill) keepSparse(x *parcel, p *source.Piece) (bool, error) {
	if x.holes == nil {
		if from, end := max(x.begin(), p.Off), min(x.at, p.End()); from < end {
			x.heads = append(x.heads, p.B[from-p.Off:end-p.Off]...)
		}
		if int64(len(x.heads)) < x.head {
			return false, nil
		}
		m, err := tar.SparseIn(x.heads, x.begin())
		if err != nil {
			return false, err
		}
		x.holes = &holes{m: m}
		x.holes.from, x.holes.to = m.Within(x.pos, x.pos+x.n)
		x.holes.fill = filler{x.pos, x.pos + x.n, func(b []byte, pos int64) error {
			x.sum.write(b)
			if x.holes.fill.idle(b, pos) {
				return nil
			}
			return f.put(f.ctx, x.ino, b, x.off+pos-x.pos)
		}}
	}
	h := x.holes
	if from, end := max(x.at+h.from, p.Off), min(x.at+h.to, p.End()); from < end {
		if err := h.m.Pour(from-x.at, p.B[from-p.Off:end-p.Off], h.fill.data); err != nil {
			return false, err
		}
	}
	if x.at+h.to > p.End() {
		return false, nil
	}
	return true, h.fill.zeros(x.pos + x.n)
}
