package manifest

import (
	"io"
	"math"
	"os"
)

// Spool keeps records in the order in which they come, in a file but for a block
// of them. It is not safe for use by several at a time.
type Spool struct {
	s     *Scratch
	f     *os.File // nil before the first record
	w     *Writer
	ended bool
}

// Spool returns an empty one, which has to be closed.
func (s *Scratch) Spool() *Spool { return &Spool{s: s} }

// Add appends r.
func (p *Spool) Add(r Record) error {
	if p.f == nil {
		f, err := p.s.file()
		if err != nil {
			return err
		}
		p.f, p.w = f, NewWriter(f)
		p.s.hold(blockSize)
	}
	return p.w.Add(r)
}

// Each calls fn with all records. Nothing can be added then, but it may be called
// again.
func (p *Spool) Each(fn func(Record) error) error {
	if p.f == nil {
		return nil
	}
	if !p.ended {
		p.ended = true
		if err := p.w.Close(); err != nil {
			return err
		}
	}
	for r := NewReader(io.NewSectionReader(p.f, 0, math.MaxInt64)); ; {
		rec, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = fn(rec)
		}
		if err != nil {
			return err
		}
	}
}

// Close gives the room back. It may be called again.
func (p *Spool) Close() {
	if p.f == nil {
		return
	}
	p.s.hold(-blockSize)
	_ = p.f.Close() // it has no name
	p.f = nil
}
