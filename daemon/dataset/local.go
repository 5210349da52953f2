package dataset

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// Local is the store that this node's own client reads: a file that is not fetched yet is fetched on its first read.
type Local struct {
	*chunkstore.Store
	fills *Fills
	check *readCheck // nil: reads are not verified
}

var (
	_ datapath.Store           = Local{}
	_ datapath.Opener          = Local{}
	_ datapath.Piper           = Local{}
	_ datapath.PresentReader   = Local{}
	_ datapath.ManyReader      = Local{}
	_ datapath.NeighbourFinder = Local{}
)

// ReadAt implements datapath.Reader.
func (l Local) ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	if r, ok := l.fills.replicas.Find(ino, off, int64(len(p))); ok {
		return l.Store.ReadAt(ctx, r.Object, p, r.Off) // returns no data if the replica was given back just now
	}
	x, err := l.fills.of(ctx, ino)
	if err != nil {
		return 0, err
	}
	if x != nil {
		if n, through, err := x.ReadThrough(ctx, ino, p, off); through || err != nil {
			l.fills.passed.Add(int64(n))
			return n, err
		}
		if n, overflow, err := l.need(ctx, x, ino, p, off); overflow || err != nil {
			return n, err
		}
		if err := l.check.verify(ctx, own(ino, off), int64(len(p))); err != nil {
			return 0, err
		}
	}
	return l.Store.ReadAt(ctx, ino, p, off)
}

// need waits until the store can answer the read. It reads overflow itself.
func (l Local) need(ctx context.Context, x *fill.Fill, ino metadata.Ino, p []byte, off int64) (n int, overflow bool, err error) {
	err = l.fills.fetch(ctx, x, ino, off, int64(len(p)))
	if errors.Is(err, fill.ErrOverflow) {
		n, err = l.fills.readOverflow(ctx, x, ino, p, off)
		return n, true, err
	}
	return 0, false, err
}

// ReadIfPresent implements datapath.PresentReader.
func (l Local) ReadIfPresent(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	if _, ok := l.fills.present(ino, off, int64(len(p))); !ok {
		return 0, fmt.Errorf("inode %v is not fetched yet: %w", ino, syscall.EAGAIN)
	}
	return l.ReadAt(ctx, ino, p, off)
}

// ReadMany implements datapath.ManyReader for overflow files, for which it waits: one request to the source reads
// neighbours in an archive. Other files get EAGAIN.
func (l Local) ReadMany(ctx context.Context, rs []datapath.RangeRead, buf []byte, _ bool) error {
	if len(rs) == 0 {
		return nil
	}
	id := rs[0].Ino.Dataset()
	for _, r := range rs {
		if r.Ino.Dataset() != id {
			return fmt.Errorf("inodes %v and %v are of different datasets: %w", rs[0].Ino, r.Ino, syscall.EINVAL)
		}
	}
	x, err := l.fills.of(ctx, rs[0].Ino)
	if err != nil {
		return err
	}
	if x == nil {
		return fmt.Errorf("dataset of inode %v: no file overflows: %w", rs[0].Ino, syscall.EAGAIN)
	}
	x.ReadMany(ctx, rs, buf)
	for _, r := range rs {
		if r.Err == nil {
			l.fills.passed.Add(int64(len(r.Data)))
		}
	}
	return nil
}

// Neighbours implements datapath.NeighbourFinder.
func (l Local) Neighbours(ino metadata.Ino, wanted func(metadata.Ino) bool) []metadata.Ino {
	if x, _ := l.fills.get(ino.Dataset()); x != nil {
		return x.Neighbours(ino, wanted)
	}
	return nil
}

// ReadPipe implements datapath.Piper for datasets. Other files are copied, because their bytes in the pipe could still
// change.
func (l Local) ReadPipe(ctx context.Context, ino metadata.Ino, to *datapath.Pipe, p []byte, off int64) (int, error) {
	if r, ok := l.fills.replicas.Find(ino, off, int64(len(p))); ok {
		return l.Store.ReadPipe(ctx, r.Object, to, p, r.Off)
	}
	x, err := l.fills.of(ctx, ino)
	if err != nil {
		return 0, err
	}
	if !ino.Sealed() || x != nil && !x.HasPiece(fill.PieceID{Ino: ino}) {
		return l.ReadAt(ctx, ino, p, off)
	}
	if x != nil {
		if n, overflow, err := l.need(ctx, x, ino, p, off); overflow || err != nil {
			return n, err
		}
		if err := l.check.verify(ctx, own(ino, off), int64(len(p))); err != nil {
			return 0, err
		}
	}
	return l.Store.ReadPipe(ctx, ino, to, p, off)
}

// Open implements datapath.Opener. A file that is not fetched yet has no object. With verify=reads, neither has a file
// that was not compared yet: the kernel reads it directly only after a read through the daemon.
func (l Local) Open(ino metadata.Ino) (*os.File, error) {
	if ino.Sealed() && !l.fills.replicas.Has(ino) {
		x, _ := l.fills.get(ino.Dataset())
		if ds, _ := l.fills.cfg.Node.View().Dataset(ino.Dataset()); x == nil && ds.Fill || x != nil && !x.Stored(ino) {
			return nil, fmt.Errorf("object %v: %w", ino, fs.ErrNotExist)
		}
		if !l.check.passed(ino) {
			return nil, fmt.Errorf("object %v is not compared yet: %w", ino, fs.ErrNotExist)
		}
	}
	return l.Store.Open(ino)
}
