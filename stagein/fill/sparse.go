package fill

import (
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// holes is the state of an item in a sparse member once its headers have been read.
type holes struct {
	m        *source.Sparse
	from, to int64 // range of the data
	fill     archive.HoleFiller
}

// keepSparse stores the bytes in p that belong to a part of a sparse member, and reports whether the part is now
// complete.
func (u unpacking) keepSparse(x *item, p *source.Piece) (bool, error) {
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
		zeros := u.dropped.has(x.PieceID)
		x.holes.from, x.holes.to = m.Within(x.pos, x.pos+x.n)
		x.holes.fill = archive.NewHoleFiller(x.pos, x.pos+x.n, func(b []byte, pos int64) error {
			x.hash(b)
			if !zeros && x.holes.fill.Idle(b, pos) {
				return nil
			}
			return u.put(x, b, x.off+pos-x.pos)
		})
	}
	h := x.holes
	if from, end := max(x.at+h.from, p.Off), min(x.at+h.to, p.End()); from < end {
		if err := h.m.Pour(from-x.at, p.B[from-p.Off:end-p.Off], h.fill.Data); err != nil {
			return false, err
		}
	}
	if x.at+h.to > p.End() {
		return false, nil
	}
	return true, h.fill.Zeros(x.pos + x.n)
}
