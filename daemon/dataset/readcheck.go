package dataset

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// readCheck verifies pieces of datasets before this node or another reads them, with verify=reads. Each piece is
// verified at its first read since the daemon started; the scrub finds later corruption.
type readCheck struct {
	n         node.Process
	store     *chunkstore.Store
	tables    *Tables
	fills     *Fills
	dropPages func(ctx context.Context, inos []metadata.Ino) // on all nodes

	mu       sync.Mutex
	verified map[pieceKey]struct{} // guarded by mu
}

type pieceKey struct {
	ino metadata.Ino
	off int64 // offset of the piece in this node's object
}

func (c *readCheck) isVerified(p fill.PieceSum) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.verified[pieceKey{p.Ino, p.Off}]
	return ok
}

// passed reports whether all pieces of a file were verified, or need no verification.
func (c *readCheck) passed(ino metadata.Ino) bool {
	if c == nil || !c.fills.cfg.Sums {
		return true
	}
	x, _ := c.fills.get(ino.Dataset())
	t, ok := c.tables.get(ino.Dataset())
	if x == nil || !ok || !c.isVerified(fill.PieceSum{Ino: ino}) {
		return false
	}
	_, a, err := t.table.Record(ino)
	if err != nil {
		return false
	}
	ps, err := x.Overlapping(ino, 0, a.Size)
	return err == nil && !slices.ContainsFunc(ps, func(p fill.PieceSum) bool { return !c.isVerified(p) })
}

func (c *readCheck) setVerified(p fill.PieceSum) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.verified == nil {
		c.verified = make(map[pieceKey]struct{})
	}
	c.verified[pieceKey{p.Ino, p.Off}] = struct{}{}
}

// verify compares the pieces in the n bytes from at on with their checksums, and refetches those that differ; it
// returns EIO if that does not help. A piece has no checksum if several nodes staged its striped file while they read
// it, or if its file has more than manifest.MaxChunks chunks. Replicas are verified without verify=reads, too, because
// other nodes repair their files from them.
func (c *readCheck) verify(ctx context.Context, at replicas.Location, n int64) error {
	ino, off := at.Object, at.Off
	switch {
	case c == nil:
		return nil
	case at.Piece.Ino != 0:
		return c.fills.replicas.Verify(ctx, at.Piece)
	case !c.fills.cfg.Sums:
		return nil
	}
	x, _ := c.fills.get(ino.Dataset())
	t, ok := c.tables.get(ino.Dataset())
	if x == nil || !ok {
		return nil
	}
	ps, err := x.Overlapping(ino, off, n)
	if err != nil {
		return err
	}
	for _, p := range ps {
		if c.isVerified(p) {
			continue
		}
		if p.Sum == ([16]byte{}) && p.Whole {
			if p.Sum, _, err = t.table.Record(ino); err != nil {
				return err
			}
		}
		if err := c.piece(ctx, x, p); err != nil {
			return err
		}
		c.setVerified(p)
	}
	return nil
}

// refetcher refetches files; *fill.Fill implements it.
type refetcher interface {
	Refetch(ctx context.Context, inos []metadata.Ino) (map[metadata.Ino]error, error)
}

func (c *readCheck) piece(ctx context.Context, x refetcher, p fill.PieceSum) error {
	bad := comparePiece(ctx, c.store, p)
	if bad == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	failed, err := x.Refetch(ctx, []metadata.Ino{p.Ino})
	c.n.Spawn(func(ctx context.Context) { c.dropPages(ctx, []metadata.Ino{p.Ino}) }) // may wait for this read
	if err == nil {
		err = failed[p.Ino]
	}
	if err == nil {
		err = comparePiece(ctx, c.store, p)
	}
	log := c.n.Log().WithFields(logrus.Fields{"inode": p.Ino.String(), "offset": p.Off, "mismatch": bad.Error()})
	if err != nil {
		log.WithError(err).Error("object does not match its checksum, and the refetch failed: run bivouac verify to find the file")
		return fmt.Errorf("inode %v does not match its checksum: %w", p.Ino, syscall.EIO)
	}
	log.Warn("object did not match its checksum: it was refetched")
	return nil
}

// comparePiece reads a piece of an object of this node and compares it with its checksum.
func comparePiece(ctx context.Context, store *chunkstore.Store, p fill.PieceSum) error {
	c := stagein.NewChecker(p.Sum, p.Len)
	if err := readObject(ctx, store, p.Ino, p.Off, p.Len, c); err != nil {
		return err
	}
	return c.Check()
}

// readObject reads from an object of this node, bypassing the page cache: the cache may hold good bytes where the drive
// does not.
func readObject(ctx context.Context, store *chunkstore.Store, ino metadata.Ino, off, n int64, w io.Writer) error {
	f, err := store.Open(ino)
	if err != nil {
		return err
	}
	defer f.Close() // read only
	fd := int(f.Fd())
	_ = unix.Fdatasync(fd)                           // dirty pages would stay in the cache
	_ = unix.Fadvise(fd, off, n, unix.FADV_DONTNEED) // only a hint
	got, err := io.Copy(w, &ctxReader{ctx, io.NewSectionReader(f, off, n)})
	if err == nil && got != n {
		err = fmt.Errorf("%d bytes of %d are there: %w", got, n, syscall.EIO)
	}
	return err
}

// ctxReader reads r until ctx ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
