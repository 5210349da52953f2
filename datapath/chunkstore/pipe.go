package chunkstore

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// ReadPipe implements datapath.Piper: the pipe refers to the page cache of the object. If the object is truncated
// before the pipe is read, reading the pipe fails.
func (s *Store) ReadPipe(ctx context.Context, ino metadata.Ino, to *datapath.Pipe, p []byte, off int64) (int, error) {
	if to.Spoilt || off < 0 {
		return s.ReadAt(ctx, ino, p, off)
	}
	f, done, err := s.Lend(ctx, ino)
	if err != nil {
		return 0, err
	}
	if f == nil {
		return s.ReadAt(ctx, ino, p, off)
	}
	defer done()
	n, at := 0, off
	for n < len(p) {
		k, err := unix.Splice(int(f.Fd()), &at, to.W, nil, len(p)-n, unix.SPLICE_F_NONBLOCK)
		if err == unix.EINTR {
			continue
		}
		if err != nil || k == 0 {
			break // the pipe is full, the object ends, or ReadAt will report the error
		}
		n += int(k)
	}
	if to.N = n; n == len(p) && !to.Full() {
		return n, nil
	}
	if err := to.Take(p); err != nil {
		return 0, fmt.Errorf("object %v: read at %d: %w", ino, off, err)
	}
	k, err := s.ReadAt(ctx, ino, p[n:], off+int64(n))
	return n + k, err
}

var _ datapath.Piper = (*Store)(nil)
