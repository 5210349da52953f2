package ingest

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// chain stages the members of a region, one after another, from a block reader.
type chain struct {
	r       *region
	t       archive.BlockReader
	g       tar.Parser
	push    *pusher
	some    bool            // the archive has had a member
	partial *stagein.Object // being staged; its data is incomplete
	// checkpointed is the offset of the last checkpoint, or where the chain begins.
	checkpointed int64

	// spec, if not nil, keeps the records and the boundary of this chain until the speculation is proved. It is polled
	// before each member.
	spec *speculation
	// stopAt is an offset between two groups at which this chain stops, because a speculation began there; 0: none.
	stopAt int64
}

// errStopped reports that a chain has reached its stopAt.
var errStopped = errors.New("stopped")

// stage runs the chain from a boundary and waits until all its puts are stored.
func (c *chain) stage(seam *Boundary) error {
	if len(seam.Carry) > 0 {
		c.t.Queue = append([]*source.Piece{source.Bytes(seam.Carry, seam.At)}, c.t.Queue...)
		c.t.Pos = seam.At
	}
	return c.end(c.begin(seam))
}

// end waits for the puts of a chain that ended with err. With OnErrorSkip, the members before damage stay, so their
// puts continue.
func (c *chain) end(err error) error {
	c.t.Close()
	skip := c.spec == nil && c.r.cfg.Plan.OnError == stagein.OnErrorSkip && err != nil && skippable(err)
	stays := skip || err == nil || errors.Is(err, errStopped)
	if !stays {
		c.push.cancel()
	}
	if e := c.push.wait(); e != nil && (stays || errors.Is(err, context.Canceled)) {
		return e
	}
	if skip && c.partial != nil {
		return errors.Join(err, c.r.takeBack(c.r.ctx, c.partial))
	}
	return err
}

// begin continues from the boundary of the region before.
func (c *chain) begin(s *Boundary) error {
	c.some, c.g.Mtime = s.Some, s.Mtime
	switch {
	case s.Ended:
		return c.ended(s.At)
	case s.Member != nil:
		if err := c.goOn(s.Member); err != nil {
			return err
		}
		if s.Member.end() >= c.r.part.End && !c.r.last() {
			return nil // the member fills the region
		}
	}
	return c.run()
}

// run stages members until the region ends.
func (c *chain) run() error {
	for {
		if c.stopAt != 0 && c.t.Pos == c.stopAt {
			return errStopped
		}
		if err := c.poll(); err != nil {
			return err
		}
		if err := c.checkpoint(); err != nil {
			return err
		}
		c.g.Reset(c.t.Pos)
		step, err := c.group()
		var refused *source.RefusedError
		switch {
		case err == io.EOF:
			return c.cut()
		case errors.As(err, &refused) && c.r.sel.Leaves(refused.Name):
			if done, err := c.unwanted(refused.Size); done || err != nil {
				return err
			}
			continue
		case errors.As(err, &refused) && c.r.cfg.Plan.OnError == stagein.OnErrorSkip:
			if err := c.refuse(refused, err); err != nil {
				return err
			}
			continue
		case refused != nil:
			return source.Advise(err)
		case err != nil:
			return err
		case step == tar.End:
			return c.ended(c.t.Pos)
		case step == tar.Skip:
			continue
		case !c.r.wants(&c.g.Item):
			if done, err := c.unwanted(c.g.Item.Stored()); done || err != nil {
				return err
			}
			continue
		}
		if done, err := c.member(&c.g.Item); done || err != nil {
			return err
		}
	}
}

// refuse leaves out a member that cannot be staged, and skips its data.
func (c *chain) refuse(e *source.RefusedError, why error) error {
	c.some = true
	if err := c.r.skip(e.Name, why); err != nil {
		return err
	}
	return c.over(e.Size)
}

// unwanted skips a member that is not selected, with size bytes of data. done means that no further member is wanted.
func (c *chain) unwanted(size int64) (done bool, err error) {
	c.some = true
	if c.r.sel.Full() {
		return true, nil
	}
	return false, c.over(size)
}

// over skips the data of a member.
func (c *chain) over(size int64) error {
	if size > c.r.size || c.t.Pos+source.Padded(size) > c.r.size {
		return c.r.truncated(&c.g)
	}
	err := c.t.Skip(source.Padded(size))
	if err == io.ErrUnexpectedEOF {
		return c.r.truncated(&c.g)
	}
	return err
}

// poll lets the speculation check whether the boundary has arrived.
func (c *chain) poll() error {
	if c.spec == nil {
		return c.r.ctx.Err()
	}
	return c.spec.poll(false)
}

// group reads a group of headers. It returns io.EOF if the region ends inside the group.
func (c *chain) group() (tar.Step, error) {
	for {
		b, err := c.t.Block()
		if err != nil {
			return tar.More, err
		}
		if len(b) < source.BlockSize {
			return tar.More, c.r.truncated(&c.g)
		}
		if step, err := c.g.Add(b); err != nil || step != tar.More {
			return step, err
		}
	}
}

// cut ends the chain if the region ends inside a group of headers.
func (c *chain) cut() error {
	if !c.r.last() {
		return c.out(Boundary{At: c.g.Start(), Carry: c.g.Carry()})
	}
	if !c.g.Fresh() && !c.g.Lone() {
		return c.r.truncated(&c.g)
	}
	return c.finish()
}

// ended checks the data after the end of the archive at offset at, which may lie in an earlier region: no other archive
// may follow.
func (c *chain) ended(at int64) error {
	if err := c.out(Boundary{At: at, Ended: true}); err != nil {
		return err
	}
	for {
		b, err := c.t.Block()
		if err == io.EOF {
			return c.finish()
		}
		if err != nil {
			return err
		}
		if tar.IsHeader(b) {
			return fmt.Errorf("the archive ends at offset %d and another begins after it (were they joined by cat?); stage them one by one: %w",
				at, syscall.EBADMSG)
		}
	}
}

// finish ends the chain. It refuses an archive without members.
func (c *chain) finish() error {
	if c.r.last() && !c.some {
		return fmt.Errorf("the archive has no members: %w", syscall.EINVAL)
	}
	return nil
}

// out passes the boundary to the next region.
func (c *chain) out(s Boundary) error {
	s.Some, s.Mtime = c.some, c.g.Mtime
	if c.unproved() {
		c.spec.boundary = &s
		return nil
	}
	return c.r.out(&s)
}

// member stages a member. done means that it is the last member of the region.
func (c *chain) member(it *source.Item) (done bool, err error) {
	c.some = true
	if it.Stored() > c.r.size || it.Off+source.Padded(it.Stored()) > c.r.size {
		return true, c.r.truncated(&c.g)
	}
	if err := c.r.fits(it); err != nil {
		return true, err
	}
	over := it.Off+it.Stored() > c.r.part.End
	if over && it.Off-c.g.Start()+it.Stored() <= int64(c.r.cfg.Limits.Carry) {
		return true, c.carry()
	}
	o, err := c.place(it, over)
	if err != nil {
		return true, err
	}
	if c.unproved() && it.Size > 0 {
		c.spec.last = o
	}
	if !over {
		return false, c.whole(it, o)
	}
	// Send the boundary first, so that the readers of the other regions need not wait for this one.
	m := &CutMember{Path: source.Name(it.Path), Ino: o.Ino, Layout: o.Layout, Off: it.Off, Size: it.Size, Sparse: it.Sparse}
	if err := c.out(Boundary{At: it.Off, Member: m}); err != nil {
		return true, err
	}
	if err := c.piece(m, c.r.part.End-it.Off, o); err != nil {
		return true, err
	}
	if err := c.push.ends(o, it.Sparse); err != nil {
		return true, err
	}
	return true, c.record(c.r.placer.Record(it, o))
}

// place numbers a member and determines where its bytes are stored. over means that it continues in the next region.
func (c *chain) place(it *source.Item, over bool) (*stagein.Object, error) {
	if over {
		return c.r.placer.Place(it, c.r.rec.Across())
	}
	return c.r.place(it)
}

// carry puts the bytes of a small member that the region's end cuts into the boundary.
func (c *chain) carry() error {
	at, b := c.g.Start(), c.g.Carry()
	for {
		p, _, err := c.t.Take(int64(c.r.pool.Size()))
		if err == io.EOF {
			return c.out(Boundary{At: at, Carry: b})
		}
		if err != nil {
			return err
		}
		b = append(b, p...)
	}
}

// whole stages a member that lies wholly in this region.
func (c *chain) whole(it *source.Item, o *stagein.Object) error {
	rec := c.r.placer.Record(it, o)
	c.partial = o
	if it.Is(source.TypeRegular) && it.Hardlink == "" {
		var err error
		if rec.Sum, rec.Chunks, err = c.content(it, o); err != nil {
			return err
		}
		if err := c.t.Skip(source.Padded(it.Stored()) - it.Stored()); err == io.ErrUnexpectedEOF {
			return c.r.truncated(&c.g)
		} else if err != nil {
			return err
		}
	}
	c.partial = nil
	return c.record(rec)
}

// content puts all data of a member. It returns its checksum, and those of its chunks if it is striped.
func (c *chain) content(it *source.Item, o *stagein.Object) ([16]byte, manifest.CRCs, error) {
	chunks := archive.NewChunkCRCs(o.Layout, it.Size)
	if it.Sparse != nil {
		m := &CutMember{Off: it.Off, Size: it.Size, Sparse: it.Sparse}
		p, err := c.part(m, it.Stored(), o, chunks)
		if err == nil {
			err = c.push.ends(o, it.Sparse)
		}
		return stagein.CRCSum(p.CRC), chunks.End(it.Size), err
	}
	sum := archive.Hasher{Size: it.Size}
	err := c.data(it.Off, it.Size, func(b []byte, piece *source.Piece, at int64) error {
		sum.Write(b)
		chunks.Write(b, at)
		return c.push.put(o, b, piece, at)
	})
	return sum.Sum128(), chunks.End(it.Size), err
}

// piece puts the next n bytes of a member that spans several regions, and keeps their checksum.
func (c *chain) piece(m *CutMember, n int64, o *stagein.Object) error {
	if n <= 0 {
		return nil
	}
	p, err := c.part(m, n, o, nil)
	if err != nil {
		return err
	}
	if c.unproved() {
		c.spec.pieces = append(c.spec.pieces, p)
	} else {
		c.r.pieces = append(c.r.pieces, p)
	}
	return nil
}

// part puts the next n bytes of a member, and returns which part of the file they are.
func (c *chain) part(m *CutMember, n int64, o *stagein.Object, chunks *archive.ChunkCRCs) (stagein.Piece, error) {
	at := c.t.Pos - m.Off
	p := stagein.Piece{Ino: m.Ino, Size: m.Size, Off: at, Len: n}
	if m.Sparse == nil {
		return p, c.data(m.Off, n, func(b []byte, piece *source.Piece, at int64) error {
			p.CRC = crc32.Update(p.CRC, archive.Castagnoli, b)
			return c.push.put(o, b, piece, at)
		})
	}
	from, end := m.Sparse.Span(at, n)
	p.Off, p.Len = from, end-from
	sum := archive.HoleSum{Pos: from}
	err := c.data(m.Off, n, func(b []byte, piece *source.Piece, at int64) error {
		return m.Sparse.Pour(at, b, func(b []byte, pos int64) error {
			sum.Write(b, pos)
			chunks.Write(b, pos)
			return c.push.put(o, b, piece, pos)
		})
	})
	p.CRC = sum.UpTo(end)
	c.push.count(p.Len - n) // holes
	return p, err
}

// data calls do with the next n bytes of a member whose data begins at off, the piece that holds them, and their offset
// within the data.
func (c *chain) data(off, n int64, do func(b []byte, piece *source.Piece, at int64) error) error {
	for n > 0 {
		if err := c.poll(); err != nil {
			return err
		}
		b, piece, err := c.t.Take(n)
		if err == io.EOF {
			return c.r.truncated(&c.g)
		}
		if err != nil {
			return err
		}
		if err := do(b, piece, c.t.Pos-int64(len(b))-off); err != nil {
			return err
		}
		n -= int64(len(b))
	}
	return nil
}

// goOn stages this region's part of a member that began in an earlier region.
func (c *chain) goOn(m *CutMember) error {
	r := c.r
	o := &stagein.Object{Path: string(m.Path), Ino: m.Ino, Layout: m.Layout}
	if err := r.placer.Locate(o); err != nil {
		return err
	}
	c.some = true
	end := min(m.Off+m.stored(), r.part.End)
	if m.end() >= r.part.End && !r.last() {
		if m.end() > r.part.End {
			if err := c.out(Boundary{At: m.Off, Member: m}); err != nil {
				return err
			}
		} else if err := c.out(Boundary{At: r.part.End}); err != nil {
			return err
		}
	}
	if err := c.piece(m, end-r.part.Off, o); err != nil {
		return err
	}
	return c.t.Skip(min(m.end(), r.part.End) - c.t.Pos)
}

func (c *chain) record(rec manifest.Record) error {
	if c.unproved() {
		return c.spec.keep(rec)
	}
	return c.r.record(rec)
}

// unproved reports whether the chain's work may still have to be undone.
func (c *chain) unproved() bool { return c.spec != nil && !c.spec.proved }
