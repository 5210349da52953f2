package source

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"
)

// Sparse is the data map of a sparse file. In the archive the extents follow each other; between them the file has
// holes.
type Sparse struct {
	Size    int64    `json:"size"`   // of the file
	Stored  int64    `json:"stored"` // bytes of data in the archive
	Extents []Extent `json:"extents,omitempty"`
}

// Extent is a range of a sparse file that has data.
type Extent struct {
	Off int64 `json:"off"` // in the file
	Len int64 `json:"len"` // at least 1
	At  int64 `json:"at"`  // in the data in the archive
}

// MaxSparse is the size limit of a sparse file, in bytes: a few bytes of an archive can claim any size.
const MaxSparse = 1 << 44

// NewSparse makes the map of a file of size bytes from pairs of offset and length. The archive has stored bytes of
// data.
func NewSparse(pairs []int64, size, stored int64) (*Sparse, error) {
	bad := func(why string) error { return fmt.Errorf("its sparse map %s: %w", why, syscall.EBADMSG) }
	if len(pairs)%2 != 0 {
		return nil, bad("has an offset without a length")
	}
	if size < 0 || size > MaxSparse {
		return nil, fmt.Errorf("a sparse file of %d bytes, %d is the most: %w", size, int64(MaxSparse), syscall.EFBIG)
	}
	s := &Sparse{Size: size, Stored: stored}
	var end, at int64
	for i := 0; i < len(pairs); i += 2 {
		off, n := pairs[i], pairs[i+1]
		if off < end || n < 0 || off > size || n > size-off {
			return nil, bad("is not sorted, or exceeds the file")
		}
		if n > 0 {
			s.Extents = append(s.Extents, Extent{off, n, at})
		}
		end, at = off+n, at+n
	}
	if at != stored {
		return nil, bad(fmt.Sprintf("describes %d bytes, the archive has %d", at, stored))
	}
	return s, nil
}

// Check rejects a map that NewSparse would not make.
func (s *Sparse) Check() error {
	var pairs []int64
	for _, e := range s.Extents {
		pairs = append(pairs, e.Off, e.Len)
	}
	same, err := NewSparse(pairs, s.Size, s.Stored)
	if err == nil && !slices.Equal(same.Extents, s.Extents) {
		err = fmt.Errorf("a sparse map that does not add up: %w", syscall.EBADMSG)
	}
	return err
}

// from returns the index of the first extent with bytes at or behind offset at of the data.
func (s *Sparse) from(at int64) int {
	i, _ := slices.BinarySearchFunc(s.Extents, at, func(e Extent, at int64) int {
		return cmp.Compare(e.At+e.Len-1, at)
	})
	return i
}

// Pour calls do for the parts of b, which lies at offset at of the data, with their positions in the file.
func (s *Sparse) Pour(at int64, b []byte, do func(b []byte, pos int64) error) error {
	for i := s.from(at); len(b) > 0; i++ {
		if i == len(s.Extents) {
			return fmt.Errorf("more data than the sparse map describes: %w", syscall.EBADMSG)
		}
		e := s.Extents[i]
		in := at - e.At
		n := min(e.Len-in, int64(len(b)))
		if err := do(b[:n], e.Off+in); err != nil {
			return err
		}
		at, b = at+n, b[n:]
	}
	return nil
}

// Span returns the range [pos, end) of the file that the bytes [at, at+n) of the data represent. Consecutive ranges of
// the data cover the whole file. A hole belongs to the data behind it, the last hole to the data before it.
func (s *Sparse) Span(at, n int64) (pos, end int64) {
	pos, end = s.after(at), s.Size
	if at+n < s.Stored {
		end = s.after(at + n)
	}
	return pos, end
}

// after returns the position in the file behind the first at bytes of data.
func (s *Sparse) after(at int64) int64 {
	if at <= 0 {
		return 0
	}
	i := s.from(at - 1)
	if i == len(s.Extents) {
		return s.Size
	}
	return s.Extents[i].Off + at - s.Extents[i].At
}

// Within returns the range of the data that lies in [pos, end) of the file.
func (s *Sparse) Within(pos, end int64) (from, to int64) {
	from, to = s.Stored, s.Stored
	for i := len(s.Extents) - 1; i >= 0; i-- {
		e := s.Extents[i]
		if e.Off >= end {
			from, to = e.At, e.At
			continue
		}
		if e.Off+e.Len > end {
			from, to = e.At+end-e.Off, e.At+end-e.Off
		}
		if e.Off+e.Len <= pos {
			break
		}
		from = e.At + max(pos-e.Off, 0)
	}
	return from, to
}

// Data reports whether the file has data, not a hole, at pos.
func (s *Sparse) Data(pos int64) bool {
	i, _ := slices.BinarySearchFunc(s.Extents, pos, func(e Extent, pos int64) int { return cmp.Compare(e.Off+e.Len-1, pos) })
	return i < len(s.Extents) && s.Extents[i].Off <= pos
}
