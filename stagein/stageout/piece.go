package stageout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// DefaultPiece is how many bytes of a large file one node copies per request.
const DefaultPiece = 256 << 20

// Piece is the range of a file that one of several nodes copies.
type Piece struct {
	To   string        `json:"to"`  // the directory that receives the copies
	Tmp  string        `json:"tmp"` // the temporary file in it; it exists and has its full size
	Attr metadata.Attr `json:"attr"`
	Off  int64         `json:"off"`
	Len  int64         `json:"len"`
}

// ReadFunc fills p from offset off of a file; fewer bytes mean the end of the file.
type ReadFunc func(ctx context.Context, a metadata.Attr, p []byte, off int64) (int, error)

// CopyPiece copies a piece, makes it durable, and reads it back to compare it with the bytes read from the source.
func CopyPiece(ctx context.Context, read ReadFunc, p Piece) error {
	if p.Off < 0 || p.Len < 0 || p.Off > p.Attr.Size-p.Len {
		return fmt.Errorf("piece of %d bytes at %d of a file of %d: %w", p.Len, p.Off, p.Attr.Size, syscall.EINVAL)
	}
	root, err := os.OpenRoot(p.To)
	if err != nil {
		return err
	}
	defer root.Close() // nothing is written through it
	f, err := root.OpenFile(p.Tmp, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = copyRange(ctx, read, f, p.Attr, p.Off, p.Len, make([]byte, wire.MaxData))
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// copyRange copies n bytes from offset off, makes them durable and verifies them.
func copyRange(ctx context.Context, read ReadFunc, f *os.File, a metadata.Attr, off, n int64, buf []byte) error {
	want, err := copyBytes(ctx, read, f, a, off, n, buf)
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	// Read back from the storage, not from memory.
	_ = unix.Fadvise(int(f.Fd()), off, n, unix.FADV_DONTNEED)
	h := xxh3.New()
	for end := off + n; off < end; {
		p := buf[:min(int64(len(buf)), end-off)]
		if _, err := f.ReadAt(p, off); err != nil {
			return fmt.Errorf("reading the copy again at offset %d: %w", off, err)
		}
		_, _ = h.Write(p) // cannot fail
		off += int64(len(p))
	}
	if got := h.Sum64(); got != want {
		return fmt.Errorf("the copy has other bytes than the file: %w", syscall.EIO)
	}
	return nil
}

// copyBytes copies n bytes from offset off and returns the checksum of the bytes read.
func copyBytes(ctx context.Context, read ReadFunc, f *os.File, a metadata.Attr, off, n int64, buf []byte) (uint64, error) {
	h := xxh3.New()
	for end := off + n; off < end; {
		p := buf[:min(int64(len(buf)), end-off)]
		n, err := read(ctx, a, p, off)
		if err != nil {
			return 0, fmt.Errorf("read at offset %d: %w", off, err)
		}
		if n < len(p) {
			return 0, fmt.Errorf("ends at offset %d of %d: %w", off+int64(n), a.Size, syscall.EBUSY)
		}
		_, _ = h.Write(p) // cannot fail
		if !zeros(p) {    // holes stay holes
			if _, err := f.WriteAt(p, off); err != nil {
				return 0, err
			}
		}
		off += int64(n)
	}
	return h.Sum64(), nil
}

// ErrUnfinished reports help that was given up: the node may still be writing.
var ErrUnfinished = errors.New("a node that helps to copy did not say that it has ended")

// pieces has all nodes copy a large file, each some of its pieces. This node copies the pieces that other nodes could
// not.
func (o *out) pieces(ctx context.Context, f *os.File, tmp, rel string, a metadata.Attr) error {
	g, ctx := errgroup.WithContext(ctx) // one unfinished piece ends the attempt
	g.SetLimit(2 * o.cfg.N)
	first := o.owner(rel)
	for i := int64(0); i*o.cfg.Piece < a.Size; i++ {
		p := Piece{To: o.cfg.To, Tmp: tmp, Attr: a, Off: i * o.cfg.Piece}
		p.Len = min(o.cfg.Piece, a.Size-p.Off)
		k := (first + int(i)) % o.cfg.N
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if k != o.cfg.Self && o.helps(k) {
				err := o.cfg.Help(ctx, k, p)
				if err == nil || ctx.Err() != nil || errors.Is(err, syscall.EBUSY) {
					return err
				}
				if errors.Is(err, ErrUnfinished) {
					o.mu.Lock()
					o.late[k] = true
					o.mu.Unlock()
					return err
				}
			}
			return copyRange(ctx, o.cfg.Read, f, a, p.Off, p.Len, make([]byte, wire.MaxData))
		})
	}
	return g.Wait()
}

// helps reports whether node k is asked for help.
func (o *out) helps(k int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.late[k]
}
