package fill

import (
	"cmp"
	"context"
	"fmt"
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
	end   int64 // of them, at the most
}

// fetchPacked fetches a piece of a compressed tar, with all others of it that this node
// lacks: without restart points a piece is reached only through those before it.
// Concurrent callers share one reading (single-flight), which ends with the fill.
func (f *Fill) fetchPacked(m cluster.Map, p PieceID, n uint32) error {
	_, err, _ := f.unpacks.Do(strconv.FormatUint(uint64(n), 10), func() (any, error) {
		if f.present.has(p) { // read since the caller looked
			return nil, nil
		}
		return nil, f.unpackAll(m, p, n)
	})
	switch {
	case f.present.has(p):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("inode %v: was not looked for: %w", p.Ino, syscall.EAGAIN)
}

// unpackAll brings what this node lacks of a compressed tar and has room for, the neighbours of p first.
func (f *Fill) unpackAll(m cluster.Map, p PieceID, n uint32) error {
	var parts []*item
	err := f.cfg.Files.Located(func(from manifest.Origin, a metadata.Attr) bool {
		if from.Source != n {
			return true
		}
		f.parts(m, from, a, func(p part) {
			if p.node == f.cfg.Self && !f.present.has(p.PieceID) {
				parts = append(parts, &item{part: p, sum: archive.Hasher{Size: p.n}})
			}
		})
		return true
	})
	if err != nil {
		return err
	}
	slices.SortFunc(parts, func(a, b *item) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.Chunk, b.Chunk)) })
	parts = f.fitting(parts, p)
	kind, err := f.src.Kind(n)
	if err != nil {
		return err
	}
	src, err := f.src.OpenArchive(n)
	if err != nil {
		return err
	}
	if len(src.Points) < 2 {
		return src.Close(f.unpack(src, f.unpackFrom(src, kind), parts))
	}
	all := unpackRanges(src.Points, parts, f.cfg.RangeSize)
	first := max(slices.IndexFunc(all, func(l unpackRange) bool {
		return slices.ContainsFunc(l.parts, func(x *item) bool { return x.PieceID == p })
	}), 0)
	var g errgroup.Group // one that fails does not end the others
	g.SetLimit(rangesAtOnce)
	for _, l := range append(all[first:len(all):len(all)], all[:first]...) {
		g.Go(func() error {
			if f.ctx.Err() != nil {
				return f.ctx.Err()
			}
			return f.unpack(src, f.unpackLeg(src, kind, &l), l.parts)
		})
	}
	return src.Close(g.Wait())
}

// unpackRanges splits parts where a restart point saves unpacking what lies between two of them, and where there is enough for
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

func (f *Fill) unpackFrom(src *archive.Content, kind source.Kind) unpacker {
	return func(ctx context.Context) *unpack.Stream {
		from := source.ReadRegion(ctx, src.Src, src.Name, 0, src.Was.Size, f.bufs.In, archive.ReadAhead)
		return unpack.Open(ctx, kind, nil, from, f.bufs.Out)
	}
}

func (f *Fill) unpackLeg(src *archive.Content, kind source.Kind, l *unpackRange) unpacker {
	return func(ctx context.Context) *unpack.Stream {
		s := unpack.Range{File: src.Src, Name: src.Name, Kind: kind, Size: src.Was.Size, Points: src.Points, Off: l.parts[0].begin(), End: l.end}
		if u := s.Open(ctx, f.bufs.In, f.bufs.Out); u != nil {
			return u
		}
		return f.unpackFrom(src, kind)(ctx)
	}
}
