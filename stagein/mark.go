package stagein

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Mark is a place in a tar that is read once, before which all is stored and
// recorded: a reader whose daemon starts again goes on there. It is JSON.
type Mark struct {
	At      int64          `json:"at"`               // offset of the next group of headers, in the tar
	Records uint64         `json:"records"`          // that were written before
	Some    bool           `json:"some,omitempty"`   // Seam.Some
	Mtime   *metadata.Time `json:"mtime,omitempty"`  // Seam.Mtime
	Need    int64          `json:"need,omitempty"`   // bytes of members of a compressed tar
	Files   int64          `json:"files,omitempty"`  // Progress.Files
	Bytes   int64          `json:"bytes,omitempty"`  // Progress.Bytes
	Pieces  []Piece        `json:"pieces,omitempty"` // Share.Pieces
	Kept    []Try          `json:"kept,omitempty"`   // whose inodes are recorded, this one's among them
}

// Try is one beginning of a part: of the inodes that have its number, those up to Kept
// are files of the dataset, and what comes after them is nobody's.
type Try struct {
	Number uint16 `json:"number"`
	Kept   uint32 `json:"kept,omitempty"`
}

// Marks reports whether shares of the plan have marks: those of one tar all of which is
// wanted.
func (p *Plan) Marks() bool {
	return p.OnError == OnErrorFail && (p.Kind == source.Tar || p.Kind.Packed())
}

// in reports whether m can be a mark in that part.
func (m *Mark) in(p *Plan, x Part) bool {
	if m.At < 0 || m.At%source.BlockSize != 0 || len(m.Kept) == 0 {
		return false
	}
	return p.Kind.Packed() || m.At >= x.Off && m.At <= x.End
}

// markEvery is how many bytes of a tar are read between two marks.
const markEvery = 4 << 20

// mark makes a mark here, if it is time, that is told when all that was put before it
// is stored. What is not proved has none.
func (c *chain) mark() error {
	s := c.r.Share
	if s.cfg.Marked == nil || !s.cfg.Plan.Marks() || c.unproved() || c.landing != 0 || c.t.pos-c.marked < s.lim.mark {
		return nil
	}
	c.marked = c.t.pos
	m := Mark{
		At: c.t.pos, Some: c.some, Mtime: c.g.Mtime, Files: s.count.files.Load(), Pieces: s.pieces[:len(s.pieces):len(s.pieces)],
	}
	if c.r.packed != nil {
		m.Need = s.count.need.Load()
	}
	var seq uint32
	var err error
	if m.Records, seq, err = s.rec.mark(); err != nil {
		return err
	}
	m.Kept = append(s.kept(), Try{s.rec.part, seq})
	c.push.mark(func() {
		m.Bytes = s.count.bytes.Load()
		s.cfg.Marked(m)
	})
	return nil
}

// kept is the tries whose inodes the records have that this one goes on from.
func (s *Share) kept() []Try {
	if s.cfg.Resume == nil {
		return nil
	}
	return s.cfg.Resume.Kept[:len(s.cfg.Resume.Kept):len(s.cfg.Resume.Kept)]
}

// Kept is the tries before this one whose inodes are recorded.
func (s *Share) Kept() []Try { return s.kept() }

// restore takes over what was recorded before the mark that this share goes on from.
func (s *Share) restore(ctx context.Context) error {
	if s.cfg.Plan.Spills {
		s.spill = newSpiller(s)
	}
	m := s.cfg.Resume
	if m == nil {
		return s.spill.begin(ctx)
	}
	from := manifest.NewReader(s.cfg.Before)
	for range m.Records {
		rec, err := from.Next()
		if err == nil {
			err = s.rec.add(rec)
		}
		if err == nil {
			err = s.spill.restored(&rec)
		}
		if err != nil {
			return fmt.Errorf("records up to the mark at %d: %w", m.At, err)
		}
	}
	s.pieces = m.Pieces
	s.count.files.Store(m.Files)
	s.count.bytes.Store(m.Bytes)
	return s.spill.begin(ctx)
}

// resume stages what comes after a mark. c is at its place.
func (c *chain) resume(m *Mark) error {
	c.some, c.g.Mtime, c.marked = m.Some, m.Mtime, m.At
	return c.end(c.run())
}

// mark is how many records there are, which are all on their way to the file, and the
// number that was given last.
func (r *recorder) mark() (records uint64, seq uint32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err = r.w.Flush()
	if f, ok := r.out.(interface{ Flush() error }); ok && err == nil {
		err = f.Flush()
	}
	return r.n, uint32(min(r.seq, math.MaxUint32)), err
}

// settled returns when all that was put until now is stored.
func (p *pusher) settled() error {
	all := make(chan struct{})
	p.mark(func() { close(all) })
	p.flush()
	select {
	case <-all:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

// generation is what is put between two marks. It has a reference for each that has not
// succeeded, for the one before it, and as long as there may be more.
type generation struct {
	refs atomic.Int64
	then func() // called when there is none any more; set before the last one goes
}

func newGeneration() *generation {
	g := new(generation)
	g.refs.Store(1)
	return g
}

func (g *generation) release() {
	if g.refs.Add(-1) == 0 {
		g.then()
	}
}

// mark has then called when all that was put until now is stored; never, if something
// of it is not.
func (p *pusher) mark(then func()) {
	g, next := p.gen, newGeneration()
	next.refs.Add(1)
	g.then = func() {
		then()
		next.release()
	}
	p.gen = next
	g.release()
}
