package archive

import (
	"context"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// HoleFiller calls do with the bytes [pos, end) of a sparse file in order, with holes as zeros.
type HoleFiller struct {
	pos, End int64
	do       func(b []byte, pos int64) error
}

// noBytes holds the zeros that do receives for holes. isHole recognizes them by their address.
var noBytes = make([]byte, 64<<10)

// isHole reports whether b is part of a hole.
func isHole(b []byte) bool { return len(b) > 0 && &b[0] == &noBytes[0] }

// NewHoleFiller returns a HoleFiller for [pos, end) of a file.
func NewHoleFiller(pos, end int64, do func(b []byte, pos int64) error) HoleFiller {
	return HoleFiller{pos, end, do}
}

func (f *HoleFiller) Data(b []byte, pos int64) error {
	if err := f.Zeros(pos); err != nil {
		return err
	}
	f.pos = pos + int64(len(b))
	return f.do(b, pos)
}

// Zeros emits the hole up to pos.
func (f *HoleFiller) Zeros(pos int64) error {
	for f.pos < pos {
		b := noBytes[:min(int64(len(noBytes)), pos-f.pos)]
		if err := f.do(b, f.pos); err != nil {
			return err
		}
		f.pos += int64(len(b))
	}
	return nil
}

// Idle reports whether b, which lies at pos, need not be stored: it is in a hole that is not at the end of the range.
func (f *HoleFiller) Idle(b []byte, pos int64) bool {
	return isHole(b) && pos+int64(len(b)) < f.End
}

// readSparse is Read for a sparse member of a tar. The member's headers have the map of its data.
func (s *Content) readSparse(ctx context.Context, bufs Buffers, pos, n int64, do func(b []byte, pos int64) error) error {
	head := make([]byte, min(s.Head, tar.MaxHeaders))
	if err := source.ReadFull(s.Src, s.Name, head, s.Base-int64(len(head))); err != nil {
		return err
	}
	m, err := tar.SparseIn(head, s.Base-int64(len(head)))
	if err != nil {
		return err
	}
	fill := HoleFiller{pos, pos + n, do}
	from, to := m.Within(pos, pos+n)
	err = s.readPieces(ctx, bufs.In, from, to-from, func(p *source.Piece) error { return m.Pour(p.Off-s.Base, p.B, fill.Data) })
	if err != nil {
		return err
	}
	return fill.Zeros(pos + n)
}
