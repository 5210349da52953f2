package ingest

import (
	"context"
	"fmt"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// zipReader stages the members in a range of a zip archive, one after another.
type zipReader struct {
	archive.Unzipper
	s       *Share
	push    *pusher
	partial *stagein.Object  // of the current member, once placed
	rec     *manifest.Record // of the current member, once all its data is read
}

// runZip stages a range of a zip archive.
func (s *Share) runZip(ctx context.Context) error {
	p, part := s.cfg.Plan, &s.cfg.Part
	head := part.Index == 0
	if head {
		s.count.source.Add(p.Read) // by MakePlan, for all parts
	}
	was := source.Info{Size: p.Size, Mtime: p.Mtime}
	f, err := s.open(string(p.Source), was)
	if err != nil {
		return err
	}
	defer f.Close() // read only
	from := source.ReadRegion(ctx, f, string(p.Source), part.Off, part.End, s.pool, archive.ReadAhead)
	defer from.Close()
	z := &zipReader{Unzipper: archive.Unzipper{Ctx: ctx, Pool: s.pool, From: archive.BlockReader{Pos: part.Off, More: from.Next}}, s: s, push: s.newPusher(ctx)}
	z.From.Waits = func() { z.push.flush() }
	if head {
		z.From.Pos = 0
		z.From.Queue = []*source.Piece{source.Bytes(p.Head[:part.Off], 0)}
	}
	err = z.run()
	z.Close()
	if err != nil {
		z.push.cancel()
	}
	if e := z.push.wait(); e != nil && (err == nil || isCanceled(err)) {
		err = e
	}
	return s.unchanged(f, err)
}

func (z *zipReader) run() error {
	items, end := z.s.cfg.Part.Items, z.s.cfg.Part.End
	for i := range items {
		next := end
		if i+1 < len(items) {
			next = items[i+1].Off
		}
		it := items[i]
		if !z.s.wants(&it) {
			continue // its bytes are skipped with those before the next member
		}
		if err := z.try(&it, next); err != nil {
			return err
		}
	}
	return z.From.Skip(end - z.From.Pos) // between members and the directory; read so that every byte is counted
}

// try stages a member. With OnErrorSkip, it leaves out a member that cannot be read, and removes its stored data.
func (z *zipReader) try(it *source.Item, next int64) error {
	named := func(err error) error {
		return fmt.Errorf("member %q at offset %d: %w", it.Path, it.Off, err)
	}
	if z.s.cfg.Plan.OnError != stagein.OnErrorSkip {
		if err := z.member(it, next); err != nil {
			return named(err)
		}
		return nil
	}
	all := z.push
	z.push = z.s.newPusher(z.Ctx)
	err := z.member(it, next)
	if err != nil {
		z.push.cancel()
	}
	if e := z.push.wait(); e != nil && (err == nil || isCanceled(err)) {
		err = e
	}
	z.push = all
	if err == nil {
		return nil
	}
	if err := z.s.skip(it.Path, named(err)); err != nil || z.partial == nil {
		return err
	}
	return z.s.takeBack(z.Ctx, z.partial)
}

// member stages a member that lies wholly before offset next.
func (z *zipReader) member(it *source.Item, next int64) error {
	z.partial, z.rec = nil, nil
	if err := z.Unzipper.Member(it, next, func() error { return z.stage(it) }); err != nil {
		return err
	}
	if it.Is(source.TypeRegular) {
		z.s.count.files.Add(1)
	}
	return z.s.rec.Add(*z.rec)
}

// stage stages the member whose data follows.
func (z *zipReader) stage(it *source.Item) error {
	if it.Is(source.TypeDir) {
		return z.record(it, nil, [16]byte{})
	}
	if it.Is(source.TypeSymlink) {
		return z.symlink(it)
	}
	o, err := z.s.place(it)
	if err != nil {
		return err
	}
	z.partial = o
	sum := archive.Hasher{Size: it.Size}
	pos := int64(0)
	err = z.Data(it, func(b []byte, piece *source.Piece) error {
		sum.Write(b)
		at := pos
		pos += int64(len(b))
		return z.push.put(o, b, piece, at)
	})
	if err != nil {
		return err
	}
	return z.record(it, o, sum.Sum128())
}

// record builds the record of a member. The record is written after the bytes behind the member's data were checked.
func (z *zipReader) record(it *source.Item, o *stagein.Object, sum [16]byte) error {
	if o == nil {
		var err error
		if o, err = z.s.place(it); err != nil {
			return err
		}
	}
	rec := z.s.placer.Record(it, o)
	rec.Sum = sum
	z.rec = &rec
	return nil
}

func (z *zipReader) symlink(it *source.Item) error {
	link := *it
	if err := z.Target(&link); err != nil {
		return err
	}
	return z.record(&link, nil, [16]byte{})
}
