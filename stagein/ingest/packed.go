package ingest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
)

// packed is the state of the reader of a compressed tar.
type packed struct {
	from *unpack.Stream
	room int64  // bytes that may be stored; 0: not known
	last string // path of the last member begun
	some bool   // a member was read
}

// unknownSize stands for the size of a tar that is not known before its end.
const unknownSize = math.MaxInt64 / 2

// runPacked stages a compressed tar: one goroutine reads, one unpacks, this one parses, and several store.
func (s *Share) runPacked(ctx context.Context) error {
	p := s.cfg.Plan
	was := source.Info{Size: p.Size, Mtime: p.Mtime}
	f, err := s.open(string(p.Source), was)
	if err != nil {
		return err
	}
	defer f.Close() // read only
	if s.cfg.Resume == nil {
		s.count.source.Add(int64(len(p.Head)) + p.Read) // read by MakePlan
	}
	u := unpack.Open(ctx, p.Kind, p.Head, source.ReadRegion(ctx, f, string(p.Source), s.cfg.Part.Off, s.cfg.Part.End, s.pool, archive.ReadAhead), s.pool)
	defer u.Close()
	k := &packed{from: u, room: p.Room}
	r := &region{Share: s, part: stagein.Part{End: unknownSize}, size: unknownSize, file: f, packed: k}
	c := r.chain(ctx, 0)
	c.t.More = u.Next
	stage := func() error { return c.stage(&Boundary{}) }
	if m := s.cfg.Resume; m != nil {
		stage = func() error { return c.again(m) }
	}
	return s.unchanged(f, k.explain(stage()))
}

// again unpacks the data before a checkpoint once more, and stages the data after it.
func (c *chain) again(m *Checkpoint) error {
	if err := c.t.Skip(m.At - c.t.Pos); err != nil {
		return c.end(err)
	}
	c.r.packed.some = m.Some
	return c.resume(m)
}

// fits refuses a member for which there is no room. A small file can unpack to any size, so only this check bounds the
// bytes stored.
func (r *region) fits(it *source.Item) error {
	k := r.packed
	if k == nil {
		return nil
	}
	k.last, k.some = it.Path, true
	need := r.count.need.Add(it.Stored()) - it.Stored()
	if k.room == 0 || it.Stored() <= k.room-need {
		return nil
	}
	node, given := r.fullest()
	return r.lacks(node, given, fmt.Errorf("member %q has %s, after %s of other members: the unpacked archive is larger than the %s that the nodes have left: %w",
		it.Path, metadata.FormatBytes(it.Stored()), metadata.FormatBytes(need), metadata.FormatBytes(k.room), syscall.ENOSPC))
}

// truncated returns the error for a tar that is truncated although its compressed stream is complete.
func (k *packed) truncated(g *tar.Parser) error {
	if it := &g.Item; it.Off > 0 {
		return fmt.Errorf("the tar inside ends in member %q at offset %d: it was truncated before it was compressed: %w",
			it.Path, g.Start(), syscall.EBADMSG)
	}
	return fmt.Errorf("the tar inside ends in the headers at offset %d: it was truncated before it was compressed: %w", g.Start(), syscall.EBADMSG)
}

// explain adds to an error of the archive how far the reader got.
func (k *packed) explain(err error) error {
	var damage *unpack.DamageError
	isDamage := errors.As(err, &damage)
	switch {
	case err == nil, !isDamage && !errors.Is(err, syscall.EBADMSG) && !errors.Is(err, syscall.EINVAL) && !stagein.IsFull(err):
		return err
	case isDamage && !k.some:
		return fmt.Errorf("%w; not even its first member could be read", err)
	case isDamage:
		return fmt.Errorf("%w; the last member begun is %q", err, k.last)
	case !k.some:
		return fmt.Errorf("%w (at or before compressed offset %d; the compressed data is not a tar, or is damaged or truncated)",
			err, k.from.Offset())
	}
	return fmt.Errorf("%w (at or before compressed offset %d; the last member begun is %q)", err, k.from.Offset(), k.last)
}
