package fill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// fetchPacked fetches a piece of a compressed tar, and with it all other pieces that this node lacks, because a piece
// is reached only by unpacking everything before it. Concurrent callers share one pass (single-flight), which ends with
// the fill.
func (f *Fill) fetchPacked(m cluster.Map, p PieceID, n uint32) error {
	_, err, _ := f.unpacks.Do(strconv.FormatUint(uint64(n), 10), func() (any, error) {
		if f.present.has(p) { // fetched since the caller looked
			return nil, nil
		}
		return nil, unpacking{Fill: f, m: m, n: n}.all(p)
	})
	switch {
	case f.present.has(p):
		return nil
	case err != nil:
		return err
	case f.dropped.changed(p):
		return errChanged(p)
	}
	return fmt.Errorf("inode %v: was not unpacked: %w", p.Ino, syscall.EAGAIN)
}

// unpacking is one pass over a compressed tar, for all its files that this node lacks.
type unpacking struct {
	*Fill
	m   cluster.Map
	n   uint32 // number of the source
	dry bool   // compare only, store nothing
}

// all fetches wanted and the other files of its compressed tar that are missing here, have no replica here, and fit.
func (u unpacking) all(wanted PieceID) error {
	var parts []*item
	err := u.cfg.Files.Located(func(from manifest.Origin, a metadata.Attr) bool {
		if from.Source != u.n {
			return true
		}
		partsOf(u.m, from, a, func(p part) {
			if p.node == u.cfg.Self && !u.present.has(p.PieceID) && (p.PieceID == wanted || u.mayStore(p.PieceID)) {
				parts = append(parts, u.item(p))
			}
		})
		return true
	})
	if err != nil {
		return err
	}
	slices.SortFunc(parts, func(a, b *item) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.Chunk, b.Chunk)) })
	if parts, err = u.unchanged(u.fitting(parts, wanted)); err != nil {
		return err
	}
	for _, x := range parts {
		u.unpacked.add(x.PieceID)
	}
	defer func() {
		for _, x := range parts {
			u.unpacked.remove(x.PieceID)
		}
	}()
	return u.read(parts)
}

func (u unpacking) item(p part) *item {
	return &item{part: p, sum: archive.Hasher{Size: p.n}, want: checker(u.Fill, p.PieceID, p.n)}
}

// unchanged removes from parts the dropped pieces that have changed in the source. It reads them in a dry run first,
// because only the right bytes may be written to an object: a kernel view may read it.
func (u unpacking) unchanged(parts []*item) ([]*item, error) {
	var dropped []*item
	for _, x := range parts {
		if u.dropped.has(x.PieceID) {
			dropped = append(dropped, u.item(x.part))
		}
	}
	u.dry = true
	err := u.read(dropped)
	changed := make(map[PieceID]bool)
	for _, x := range dropped {
		changed[x.PieceID] = x.changed
	}
	return slices.DeleteFunc(parts, func(x *item) bool { return changed[x.PieceID] }), err
}

// read reads a compressed tar up to the end of the last part, and stores the parts here.
func (u unpacking) read(parts []*item) error {
	if len(parts) == 0 {
		return nil
	}
	src, err := u.src.OpenArchive(u.n)
	if err != nil {
		return err
	}
	return src.Close(u.readFrom(src, parts))
}

func (u unpacking) readFrom(src *archive.Content, parts []*item) error {
	ctx, cancel := context.WithCancel(u.ctx)
	defer cancel()
	from := src.Stream(ctx, u.bufs)
	defer from.Close()
	for next := 0; next < len(parts); {
		p, err := from.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: unpacked size shrank since the scan: the archive has changed: %w", src.Name, syscall.ESTALE)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", src.Name, err)
		}
		next, err = u.keep(parts, next, p)
		p.Release()
		if err != nil {
			return err
		}
	}
	return src.Unchanged()
}

// keep stores the bytes in p that belong to parts, starting at parts[next], the first incomplete part. It returns the
// index of the first part that is still incomplete.
func (u unpacking) keep(parts []*item, next int, p *source.Piece) (int, error) {
	for i := next; i < len(parts) && parts[i].begin() < p.End(); i++ {
		x := parts[i]
		if x.sparse {
			if whole, err := u.keepSparse(x, p); err != nil {
				return next, err
			} else if !whole {
				continue
			}
		} else if from, end := max(x.at, p.Off), min(x.end(), p.End()); from < end {
			b := p.B[from-p.Off : end-p.Off]
			x.hash(b)
			if err := u.put(x, b, x.off+from-x.at); err != nil {
				return next, err
			}
		}
		if x.end() > p.End() {
			continue // never a sparse part
		}
		if err := u.commit(x); err != nil {
			return next, err
		}
		next = i + 1
	}
	return next, nil
}

// commit records a piece that arrived in the pass, and ends its flight.
func (u unpacking) commit(x *item) error {
	if u.present.has(x.PieceID) {
		return nil
	}
	changed := compareSource(u.Fill, x.PieceID, x.sum.Sum128(), x.want)
	x.changed = changed != nil
	if u.dry {
		return nil // the waiters get the result when the pass ends
	}
	if changed == nil {
		if err := u.journal.add(x.PieceID, x.sum.Sum128()); err != nil {
			return err
		}
		u.markPresent(x.PieceID, x.n)
		u.unpacked.remove(x.PieceID)
	}
	if fl := u.flights.of(x.PieceID); fl != nil {
		u.finish(x.PieceID, fl, u.outcome(x.PieceID, changed))
	}
	return nil
}

// put stores bytes of a part, except in a dry run.
func (u unpacking) put(x *item, b []byte, off int64) error {
	if u.dry {
		return nil
	}
	return u.Fill.put(u.ctx, x.Ino, b, off)
}
