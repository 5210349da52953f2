package stagein

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source/unpack"
)

// fromPlace is each for a member of a compressed tar, of which some stay there: what
// comes before it is unpacked from the next place on at which that can be begun.
func (s *stretch) fromPlace(ctx context.Context, bufs pools, pos, n int64, do func(b []byte, pos int64) error) error {
	part := unpack.Stretch{
		File: s.file, Name: s.name, Kind: s.kind, Size: s.was.Size, Points: s.points, Off: s.base + pos, End: s.base + pos + n,
	}
	u := part.Unpack(ctx, bufs.in, bufs.out)
	if u == nil {
		return fmt.Errorf("%s: it has no restart point before offset %d: %w", s.name, part.Off, syscall.EIO)
	}
	defer u.Close()
	for at := part.Off; at < part.End; {
		p, err := u.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: unpacks to less than it did: %w", s.name, syscall.ESTALE)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if end := min(p.End(), part.End); end > at {
			err = do(p.B[at-p.Off:end-p.Off], at-s.base)
			at = end
		}
		p.Release()
		if err != nil {
			return err
		}
	}
	return s.same()
}
