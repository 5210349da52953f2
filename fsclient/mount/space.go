package mount

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// Fallocate allocates or frees space of an open file. It supports the default mode,
// KEEP_SIZE, PUNCH_HOLE and ZERO_RANGE; other modes, and disks without them, are
// EOPNOTSUPP.
func (s *fsys) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	var err error
	code := s.call(opFallocate, cancel, &in.InHeader, func(ctx context.Context) error {
		var h *handle
		if h, err = s.liveFile(ctx, in.Fh); err != nil {
			return err
		}
		if in.Offset > 1<<63-1 || in.Length > 1<<63-1 {
			return syscall.EFBIG
		}
		h.file.PagesMiss()
		err = fallocate(ctx, h.file, in.Mode, int64(in.Offset), int64(in.Length))
		s.takeover.settle(h)
		if err == nil && in.Uid != 0 { // the kernel has no flag for that
			err = s.dropSetIDsOf(ctx, h.file)
		}
		return stale(err)
	})
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return notSupported
	}
	return code
}

// fallocate performs one mode of fallocate(2). ZERO_RANGE is a hole with its space
// allocated.
func fallocate(ctx context.Context, f *fsclient.File, mode uint32, off, n int64) error {
	allocate := f.Allocate
	if mode&unix.FALLOC_FL_KEEP_SIZE != 0 {
		allocate = f.Reserve
	}
	switch mode &^ unix.FALLOC_FL_KEEP_SIZE {
	case 0:
		return allocate(ctx, off, n)
	case unix.FALLOC_FL_PUNCH_HOLE:
		return f.Punch(ctx, off, n)
	case unix.FALLOC_FL_ZERO_RANGE:
		if err := f.Punch(ctx, off, n); err != nil {
			return err
		}
		return allocate(ctx, off, n)
	}
	return fmt.Errorf("fallocate mode %#x: %w", mode, syscall.EOPNOTSUPP)
}

// liveFile returns the handle of an open live file.
func (s *fsys) liveFile(ctx context.Context, fh uint64) (*handle, error) {
	h, err := s.takeover.handle(ctx, fh)
	if err != nil {
		return nil, err
	}
	if h.file == nil {
		return nil, syscall.EBADF
	}
	return h, nil
}

// Lseek finds data and holes; the kernel does all other seeks.
func (s *fsys) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	return s.call(opLseek, cancel, &in.InHeader, func(ctx context.Context) error {
		h, err := s.takeover.handle(ctx, in.Fh)
		if err != nil {
			return err
		}
		if in.Offset > 1<<63-1 {
			return syscall.ENXIO
		}
		var at int64
		switch {
		case in.Whence != unix.SEEK_DATA && in.Whence != unix.SEEK_HOLE:
			return syscall.EINVAL
		case h.file == nil:
			at, err = s.seekWhole(ctx, in)
		case in.Whence == unix.SEEK_DATA:
			at, err = h.file.NextData(ctx, int64(in.Offset))
		default:
			at, err = h.file.NextHole(ctx, int64(in.Offset))
		}
		out.Offset = uint64(at)
		return stale(err)
	})
}

// seekWhole seeks in a file without holes: a virtual file, or a file with passthrough.
func (s *fsys) seekWhole(ctx context.Context, in *fuse.LseekIn) (int64, error) {
	a, _, err := s.attr(ctx, metadata.Ino(in.NodeId))
	switch {
	case err != nil:
		return 0, err
	case int64(in.Offset) >= a.Size:
		return 0, syscall.ENXIO
	case in.Whence == unix.SEEK_HOLE:
		return a.Size, nil
	}
	return int64(in.Offset), nil
}

// fillBlocks sets st_blocks if this node knows it.
func (s *fsys) fillBlocks(ctx context.Context, out *fuse.Attr, a *metadata.Attr) {
	if n, ok := s.client.Blocks(ctx, a); ok {
		out.Blocks = uint64(n / 512)
	}
}
