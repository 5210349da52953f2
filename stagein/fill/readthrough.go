package fill

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
)

// IsOverflow reports whether a file is read through from the source: no node stores it.
func IsOverflow(a *metadata.Attr) bool { return a.Layout.Kind == metadata.Overflow }

// ReadThrough fills p from offset off of the file ino, through the cache, if the file is an overflow file; otherwise it
// returns false. It reads a file whole, a large one in chunks, once for all concurrent readers on this node.
func (f *Fill) ReadThrough(ctx context.Context, ino metadata.Ino, p []byte, off int64) (n int, through bool, err error) {
	if !f.cfg.Origins.HasOverflow {
		return 0, false, nil
	}
	_, a, err := f.cfg.Files.Origin(ino)
	if err != nil || !IsOverflow(&a) {
		return 0, false, err
	}
	for n < len(p) && off < a.Size {
		x := pieceAt(&a, off)
		var got int
		err := f.cache.View(ctx, x, overflowSize(&a, x), f.spawn, func(b []byte) error { return f.readThrough(x, &a, b) },
			func(b []byte) { got = copy(p[n:], b[off-int64(x.Chunk)*stagein.StripeChunk:]) })
		if err != nil {
			return 0, true, err
		}
		n, off = n+got, off+int64(got)
	}
	return n, true, nil
}

// pieceAt returns the piece of an overflow file that contains the byte at off.
func pieceAt(a *metadata.Attr, off int64) PieceID {
	if a.Size <= stagein.DefaultStripe {
		return PieceID{Ino: a.Ino}
	}
	return PieceID{a.Ino, uint32(off / stagein.StripeChunk)}
}

func overflowSize(a *metadata.Attr, x PieceID) int64 {
	if a.Size <= stagein.DefaultStripe {
		return a.Size
	}
	return min(stagein.StripeChunk, a.Size-int64(x.Chunk)*stagein.StripeChunk)
}

// spawn runs a fetch in the background.
func (f *Fill) spawn(fetch func()) {
	if !f.flights.enter() {
		fetch() // it fails, because the fill's context has ended
		return
	}
	go func() {
		defer f.flights.wg.Done()
		f.demandSlots <- struct{}{}
		defer func() { <-f.demandSlots }()
		fetch()
	}()
}

// readThrough reads a piece from the source into b and verifies its checksum. On a mismatch it reads once more, because
// the bytes may have changed in transit. It reports a piece that cannot be read and returns EIO.
func (f *Fill) readThrough(x PieceID, a *metadata.Attr, b []byte) error {
	err := f.readSource(x, a, b)
	if isMismatch(err) {
		err = f.readSource(x, a, b)
	}
	if err != nil {
		if f.ctx.Err() == nil { // else the daemon is stopping
			f.bad.report(a, err)
		}
		return fmt.Errorf("%v: %w", err, syscall.EIO)
	}
	f.bad.forget(x.Ino)
	f.readThroughs.Add(1)
	return nil
}

// readSource reads a piece from the source and verifies its checksum.
func (f *Fill) readSource(x PieceID, a *metadata.Attr, b []byte) error {
	err := f.retry(func() error {
		from, _, err := f.cfg.Files.Origin(x.Ino)
		if err != nil {
			return err
		}
		src, err := f.src.Open(from, a)
		if err != nil {
			return err
		}
		pos := int64(x.Chunk) * stagein.StripeChunk
		err = src.Read(f.ctx, f.bufs, pos, int64(len(b)), func(p []byte, at int64) error {
			copy(b[at-pos:], p)
			return nil
		})
		return src.Close(src.Explain(err))
	})
	switch {
	case err != nil:
		return err
	case int64(len(b)) < a.Size:
		return compareChunk(f.cfg.Files, x, a, b)
	}
	return compare(f.cfg.Files, a, b)
}

// compareChunk compares a chunk of a large file with its checksum, if there is one.
func compareChunk(files stagein.Files, x PieceID, a *metadata.Attr, b []byte) error {
	sums, ok := files.(ChunkSums)
	if !ok || a.Layout.Chunk() != stagein.StripeChunk {
		return nil
	}
	crcs, err := sums.Chunks(x.Ino)
	if err != nil || int(x.Chunk) >= crcs.Len() {
		return err
	}
	return matches(stagein.NewChecker(stagein.CRCSum(crcs.At(int(x.Chunk))), int64(len(b))), b)
}

// matches returns an error if b does not match c.
func matches(c *stagein.Checker, b []byte) error {
	_, _ = c.Write(b) // cannot fail
	if err := c.Check(); err != nil {
		return &mismatchError{err}
	}
	return nil
}

// FileSums is implemented by Files that know the checksum of each file, in the form that Checker takes; zeros: not
// known.
type FileSums interface {
	Record(ino metadata.Ino) (sum [16]byte, a metadata.Attr, err error)
}

// compare compares all bytes of an overflow file with its checksum, if there is one.
func compare(files stagein.Files, a *metadata.Attr, b []byte) error {
	sums, ok := files.(FileSums)
	if !ok {
		return nil
	}
	want, _, err := sums.Record(a.Ino)
	if err != nil || want == [16]byte{} {
		return err
	}
	return matches(stagein.NewChecker(want, a.Size), b)
}

// mismatchError reports that the source's bytes differ from the staged ones.
type mismatchError struct{ err error }

func (e *mismatchError) Error() string { return e.err.Error() }
func (e *mismatchError) Unwrap() error { return e.err }

// isMismatch reports whether the source was read and had other bytes.
func isMismatch(err error) bool {
	var wrong *mismatchError
	var damage *unpack.DamageError
	return errors.As(err, &wrong) || errors.As(err, &damage) || errors.Is(err, syscall.EBADMSG)
}
