package stagein

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
)

// packed is the compressed file that a tar comes out of, for its only reader.
type packed struct {
	from *unpack.Unpacked
	room int64  // bytes that may be stored; 0 is not known
	last string // member
	end  int64  // of its data
	all  int64  // bytes that it unpacks to; 0 is not known
	some bool   // there was a member
}

// endless is the size of a tar of which nobody knows the size before its end.
const endless = math.MaxInt64 / 2

// runPacked stages a compressed tar: one goroutine reads, one unpacks, this one
// parses, and several store.
func (s *Share) runPacked(ctx context.Context) error {
	p := s.cfg.Plan
	was := source.Info{Size: p.Size, Mtime: p.Mtime}
	f, err := s.open(string(p.Source), was)
	if err != nil {
		return err
	}
	defer f.Close()                                 // read only
	s.count.source.Add(int64(len(p.Head)) + p.Read) // read by MakePlan
	u, begin := s.unpack(ctx, f)
	defer u.Close()
	if s.cfg.Log != nil {
		s.cfg.Log.WithFields(logrus.Fields{"archive": string(p.Source), "workers": u.Workers()}).Debug("unpacking a compressed tar") // there may be thousands
	}
	k := &packed{from: u, room: p.Room}
	r := &region{Share: s, part: Part{End: endless}, size: endless, file: f, packed: k}
	c := r.chain(ctx, begin)
	c.t.more = u.Next
	s.spill.use(c.push, u, p.Number)
	stage := func() error { return c.stage(&Seam{}) }
	if m := s.cfg.Resume; m != nil {
		stage = func() error { return c.again(m) }
	}
	err = stage()
	if c.t.bad == io.EOF {
		k.all = c.t.pos
	}
	if err == nil || p.OnError == OnErrorSkip && skippable(err) { // what came before the damage stays
		if e := s.spill.ended(p, k); e != nil {
			err = e
		}
	}
	if err != nil {
		return k.explain(err)
	}
	return unchanged(f, string(p.Source), was)
}

// unpack begins to unpack a file, which gives what is from begin on, and finds where that can be begun again if some of
// it may stay there, or there are marks.
func (s *Share) unpack(ctx context.Context, f source.File) (u *unpack.Unpacked, begin int64) {
	p, off, start := s.cfg.Plan, s.cfg.Part.Off, s.start()
	if start != nil {
		off, begin = start.Byte(p.Kind), start.Begin()
	}
	from := source.ReadRegion(ctx, f, string(p.Source), off, s.cfg.Part.End, s.pool, readAhead)
	marks := s.marker != nil || s.marks()
	apart := unpack.Spacing{Apart: s.lim.apart, Inside: s.lim.inside, Windows: s.lim.windows, Starts: marks && unpack.HasPlaces(p.Kind)}
	if s.spill == nil {
		apart.Windows = 1 // nobody but marks wants those
	} else {
		apart.Inside = s.spill.inside(0, 0)
	}
	switch {
	case start != nil:
		return unpack.UnpackFrom(ctx, p.Kind, *start, s.spill.placesOf(p.Number), from, s.pool, apart), begin
	case s.spill == nil && !apart.Starts:
		return unpack.Unpack(ctx, p.Kind, p.Head, from, s.pool), begin
	}
	return unpack.UnpackPlaces(ctx, p.Kind, p.Head, from, s.pool, apart), begin
}

// start is from where on a compressed tar is unpacked to go on from a mark; nil is from its beginning, as it is when
// nothing says how to come to what stays before it.
func (s *Share) start() *unpack.Start {
	if s.cfg.Resume == nil || s.spill != nil && len(s.spill.placesOf(s.cfg.Plan.Number)) == 0 {
		return nil
	}
	return s.cfg.Resume.From
}

// again unpacks what comes before a mark once more, from the last place before it on, and stages what comes after it.
func (c *chain) again(m *Mark) error {
	if err := c.t.skip(m.At - c.t.pos); err != nil {
		return c.end(err)
	}
	c.r.packed.some = m.Some
	return c.resume(m)
}

// fits refuses a member for which there is no room. A small file can unpack to
// anything, so nothing else bounds what is stored.
func (r *region) fits(it *source.Item) error {
	k := r.packed
	if k == nil {
		return nil
	}
	k.last, k.end, k.some = it.Path, it.Off+it.Stored(), true
	need := r.count.need.Add(it.Stored()) - it.Stored()
	if k.room == 0 || r.spill != nil || it.Stored() <= k.room-need {
		return nil
	}
	node, given := r.fullest()
	return r.lacks(node, given, fmt.Errorf("member %q of %s, after %s of others: what is packed is more than the %s that the nodes have left: %w",
		it.Path, size(it.Stored()), size(need), size(k.room), syscall.ENOSPC))
}

// truncated is for a tar that ends although what it was packed in is whole.
func (k *packed) truncated(g *tar.Group) error {
	if it := &g.Item; it.Off > 0 {
		return fmt.Errorf("the tar inside ends in member %q, which is at offset %d of it: it was truncated before it was compressed: %w",
			it.Path, g.Start(), syscall.EBADMSG)
	}
	return fmt.Errorf("the tar inside ends in the headers at its offset %d: it was truncated before it was compressed: %w", g.Start(), syscall.EBADMSG)
}

// explain adds how far the reader came to an error that is the archive's.
func (k *packed) explain(err error) error {
	var damage *unpack.DamageError
	isDamage := errors.As(err, &damage)
	switch {
	case !isDamage && !errors.Is(err, syscall.EBADMSG) && !errors.Is(err, syscall.EINVAL) && !isFull(err):
		return err
	case isDamage && !k.some:
		return fmt.Errorf("%w; not even its first member could be read", err)
	case isDamage:
		return fmt.Errorf("%w; the last member begun is %q", err, k.last)
	case !k.some:
		return fmt.Errorf("%w (after compressed offset %d at the most; what is compressed is no tar archive, or a damaged or truncated one)",
			err, k.from.Offset())
	}
	return fmt.Errorf("%w (after compressed offset %d at the most; the last member begun is %q)", err, k.from.Offset(), k.last)
}
