package fill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
)

// rangesAtOnce is how many ranges of a compressed tar are read at a time.
const rangesAtOnce = 4

// unpackRange is parts of a compressed tar that one reading reaches from one restart point.
type unpackRange struct {
	parts []*item
	end   int64 // upper bound of the end of parts
}

// fetchPacked fetches a piece of a compressed tar, with all other pieces that this node
// lacks: without restart points a piece is reached only through those before it.
// Concurrent callers share one reading (single-flight), which ends with the fill.
func (f *Fill) fetchPacked(m cluster.Map, p PieceID, n uint32) error {
	_, err, _ := f.unpacks.Do(strconv.FormatUint(uint64(n), 10), func() (any, error) {
		if f.present.has(p) { // read since the caller looked
			return nil, nil
		}
		return nil, unpacking{f, m, n}.all(p)
	})
	switch {
	case f.present.has(p):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("inode %v: was not unpacked: %w", p.Ino, syscall.EAGAIN)
}

// unpacking is one reading of a compressed tar, for all its files that this node lacks.
type unpacking struct {
	*Fill
	m cluster.Map
	n uint32 // of the source
}

// all fetches the files of a compressed tar that this node lacks and has room for, the neighbours of p first.
func (u unpacking) all(p PieceID) error {
	var parts []*item
	err := u.cfg.Files.Located(func(from manifest.Origin, a metadata.Attr) bool {
		if from.Source != u.n {
			return true
		}
		partsOf(u.m, from, a, func(p part) {
			if p.node == u.cfg.Self && !u.present.has(p.PieceID) {
				parts = append(parts, &item{part: p, sum: archive.Hasher{Size: p.n}})
			}
		})
		return true
	})
	if err != nil {
		return err
	}
	slices.SortFunc(parts, func(a, b *item) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.Chunk, b.Chunk)) })
	parts = u.fitting(parts, p)
	kind, err := u.src.Kind(u.n)
	if err != nil {
		return err
	}
	src, err := u.src.OpenArchive(u.n)
	if err != nil {
		return err
	}
	if len(src.Points) < 2 {
		return src.Close(u.read(src, u.fromStart(src, kind), parts))
	}
	all := unpackRanges(src.Points, parts, u.cfg.RangeSize)
	first := max(slices.IndexFunc(all, func(l unpackRange) bool {
		return slices.ContainsFunc(l.parts, func(x *item) bool { return x.PieceID == p })
	}), 0)
	var g errgroup.Group // one that fails does not end the others
	g.SetLimit(rangesAtOnce)
	for _, l := range append(all[first:len(all):len(all)], all[:first]...) {
		g.Go(func() error {
			if u.ctx.Err() != nil {
				return u.ctx.Err()
			}
			return u.read(src, u.fromPoint(src, kind, &l), l.parts)
		})
	}
	return src.Close(g.Wait())
}

// unpackRanges splits parts where a restart point saves unpacking the bytes between two parts, and where there is enough for
// two readers.
func unpackRanges(points unpack.RestartPoints, parts []*item, size int64) []unpackRange {
	var all []unpackRange
	begin := int64(0)
	for i, x := range parts {
		from, ok := points.Before(x.begin())
		if n := len(all); n == 0 || ok && (from >= all[n-1].end || x.begin()-begin >= size) {
			all, begin = append(all, unpackRange{}), x.begin()
		}
		l := &all[len(all)-1]
		l.parts, l.end = append(l.parts, x), max(l.end, ends(parts, i))
	}
	return all
}

// ends is where a part ends at the most: of a sparse one only its headers say it.
func ends(parts []*item, i int) int64 {
	x := parts[i]
	if !x.sparse {
		return x.end()
	}
	for _, y := range parts[i+1:] {
		if y.at != x.at {
			return y.begin()
		}
	}
	return math.MaxInt64
}

// unpacker begins to unpack something that is read with ctx.
type unpacker func(ctx context.Context) *unpack.Stream

func (u unpacking) fromStart(src *archive.Content, kind source.Kind) unpacker {
	return func(ctx context.Context) *unpack.Stream {
		from := source.ReadRegion(ctx, src.Src, src.Name, 0, src.Was.Size, u.bufs.In, archive.ReadAhead)
		return unpack.Open(ctx, kind, nil, from, u.bufs.Out)
	}
}

func (u unpacking) fromPoint(src *archive.Content, kind source.Kind, l *unpackRange) unpacker {
	return func(ctx context.Context) *unpack.Stream {
		s := unpack.Range{File: src.Src, Name: src.Name, Kind: kind, Size: src.Was.Size, Points: src.Points, Off: l.parts[0].begin(), End: l.end}
		if from := s.Open(ctx, u.bufs.In, u.bufs.Out); from != nil {
			return from
		}
		return u.fromStart(src, kind)(ctx)
	}
}

// read reads a compressed tar up to the last of parts, and stores them here.
func (u unpacking) read(src *archive.Content, begin unpacker, parts []*item) error {
	ctx, cancel := context.WithCancel(u.ctx)
	defer cancel()
	from := begin(ctx)
	defer from.Close()
	for next := 0; next < len(parts); {
		p, err := from.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: unpacks to less than it did: %w", src.Name, syscall.ESTALE)
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

// keep stores the bytes of parts that p has, from the first part on that is not whole, and
// returns the part that is then the first.
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
			x.sum.Write(b)
			if err := u.put(u.ctx, x.Ino, b, x.off+from-x.at); err != nil {
				return next, err
			}
		}
		if x.end() > p.End() {
			continue // never a sparse one
		}
		if err := u.commit(x); err != nil {
			return next, err
		}
		next = i + 1
	}
	return next, nil
}

// commit records a piece that came with another, and ends the waits for it.
func (u unpacking) commit(x *item) error {
	if u.present.has(x.PieceID) {
		return nil
	}
	if err := u.journal.add(x.PieceID, x.sum.Sum128()); err != nil {
		return err
	}
	u.markPresent(x.PieceID, x.n)
	if fl := u.flights.of(x.PieceID); fl != nil {
		u.finish(x.PieceID, fl, nil)
	}
	return nil
}
