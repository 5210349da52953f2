package chunkstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// checkRange returns EINVAL for an invalid range and EFBIG for one beyond the largest object.
func checkRange(off, n int64) error {
	switch {
	case off < 0 || n <= 0:
		return syscall.EINVAL
	case off > math.MaxInt64-pageSize-n:
		return syscall.EFBIG
	}
	return nil
}

// Allocate implements datapath.Shaper. If the whole range exceeds the quota, only its holes are counted.
func (s *Store) Allocate(ctx context.Context, ino metadata.Ino, off, n int64) error {
	err := checkRange(off, n)
	if err == nil {
		err = s.spend(ctx, ino, off, spread(off, n), func(o *object) error { return o.file.Allocate(off, n) })
	}
	if err != nil {
		return fmt.Errorf("object %v: allocate %d at %d: %w", ino, n, off, err)
	}
	return nil
}

// Punch implements datapath.Shaper.
func (s *Store) Punch(ctx context.Context, ino metadata.Ino, off, n int64) error {
	err := checkRange(off, n)
	if err == nil {
		err = s.use(ctx, ino, false, func(o *object) error {
			if err := s.change(o, nil, off, n, func() error { return o.file.Punch(off, n) }); err != nil {
				return err
			}
			return s.recount(o)
		})
	}
	return wrap("punch", ino, err)
}

// Data implements datapath.Shaper.
func (s *Store) Data(ctx context.Context, ino metadata.Ino, off int64) (datapath.Extent, error) {
	if off < 0 {
		return datapath.Extent{}, wrap("data", ino, syscall.EINVAL)
	}
	e := datapath.NoData
	err := s.use(ctx, ino, false, func(o *object) (err error) {
		e, err = o.file.Data(off)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return datapath.Extent{}, wrap("data", ino, err)
	}
	return e, nil
}

// Allocated implements datapath.Shaper.
func (s *Store) Allocated(ctx context.Context, ino metadata.Ino) (int64, error) {
	var n int64
	err := s.use(ctx, ino, false, func(o *object) error {
		st, err := o.file.Stat()
		n = st.Alloc
		return err
	})
	return n, wrap("size", ino, err)
}
