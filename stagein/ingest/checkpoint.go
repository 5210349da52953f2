package ingest

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Checkpoint is a point in the single pass of a part before which all data is stored and recorded: after a restart of
// its daemon, a reader continues there. In a part of several archives it lies between two of them; in a part of one
// archive, it lies inside it. It is encoded as JSON.
type Checkpoint struct {
	Position
	Next    int             `json:"next,omitempty"`   // index of the first incomplete archive, if there are several
	Records uint64          `json:"records"`          // number of records written before
	Source  int64           `json:"source,omitempty"` // Progress.SourceBytes
	Need    int64           `json:"need,omitempty"`   // bytes of members of compressed tars
	Files   int64           `json:"files,omitempty"`  // Progress.Files
	Bytes   int64           `json:"bytes,omitempty"`  // Progress.Bytes
	Pieces  []stagein.Piece `json:"pieces,omitempty"` // Share.Pieces
	Kept    []stagein.Try   `json:"kept,omitempty"`   // tries whose inodes are recorded, including this one
}

// Position is a point in an archive, between two members.
type Position struct {
	At    int64          `json:"at"`              // offset of the next group of headers, in the tar
	Some  bool           `json:"some,omitempty"`  // Boundary.Some
	Mtime *metadata.Time `json:"mtime,omitempty"` // Boundary.Mtime
}

// validIn reports whether m can be a checkpoint of the part x.
func (m *Checkpoint) validIn(p *stagein.Plan, x stagein.Part) bool {
	switch {
	case len(m.Kept) == 0:
		return false
	case p.Kind == source.Many:
		return m.Next >= 0 && m.Next <= len(x.Archives) && (m.At == 0 || len(x.Archives) == 1)
	case m.At < 0 || m.At%source.BlockSize != 0:
		return false
	}
	return p.Kind.Packed() || m.At >= x.Off && m.At <= x.End
}

// checkpoints reports whether the share makes checkpoints.
func (s *Share) checkpoints() bool {
	return s.cfg.Checkpointed != nil && s.cfg.Plan.Checkpoints()
}

// checkpoint makes a checkpoint here if one is due. The checkpoint is reported once all earlier puts are stored. An
// unproved speculation makes none.
func (c *chain) checkpoint() error {
	s := c.r.Share
	if !s.checkpoints() || c.unproved() || c.stopAt != 0 || c.t.Pos-c.checkpointed < s.cfg.Limits.Checkpoint {
		return nil
	}
	c.checkpointed = c.t.Pos
	m := Checkpoint{Position: c.position(), Files: s.count.files.Load(), Pieces: s.pieces[:len(s.pieces):len(s.pieces)]}
	if c.r.packed != nil {
		m.Need = s.count.need.Load()
	}
	if err := s.recorded(&m); err != nil {
		return err
	}
	c.push.gens.barrier(func() {
		m.Bytes, m.Source = s.count.bytes.Load(), s.count.source.Load()
		s.cfg.Checkpointed(m)
	})
	return nil
}

// position returns the chain's position, between two groups.
func (c *chain) position() Position {
	return Position{At: c.t.Pos, Some: c.some, Mtime: c.g.Mtime}
}

// recorded adds to a checkpoint the state of the records before it.
func (s *Share) recorded(m *Checkpoint) error {
	records, try, err := s.rec.Flush()
	m.Records, m.Kept = records, append(s.kept(), try)
	return err
}

// kept returns the earlier tries whose inodes are in the records.
func (s *Share) kept() []stagein.Try {
	if s.cfg.Resume == nil {
		return nil
	}
	return s.cfg.Resume.Kept[:len(s.cfg.Resume.Kept):len(s.cfg.Resume.Kept)]
}

// Kept returns the earlier tries whose inodes are in the records.
func (s *Share) Kept() []stagein.Try { return s.kept() }

// restore copies the records and restores the counters up to the checkpoint from which this share resumes.
func (s *Share) restore() error {
	m := s.cfg.Resume
	if m == nil {
		return nil
	}
	from := manifest.NewReader(s.cfg.Before)
	for range m.Records {
		rec, err := from.Next()
		if err == nil {
			err = s.rec.Add(rec)
		}
		if err != nil {
			return fmt.Errorf("records up to the checkpoint at %d: %w", m.At, err)
		}
		s.sel.Restored(&rec)
	}
	s.pieces = m.Pieces
	s.count.files.Store(m.Files)
	s.count.bytes.Store(m.Bytes)
	s.count.need.Store(m.Need)
	s.count.source.Store(m.Source)
	return nil
}

// resume stages the members after a checkpoint, at which c stands.
func (c *chain) resume(m *Checkpoint) error {
	c.some, c.g.Mtime, c.checkpointed = m.Some, m.Mtime, m.At
	return c.end(c.run())
}

// generation groups the puts between two barriers. It has a reference for each put that has not succeeded, one for the
// previous generation, and one while it is open.
type generation struct {
	refs atomic.Int64
	then func() // called when the last reference is released; set before that
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

// generations is the open generation and, linked to it, the earlier ones.
type generations struct {
	mu  sync.Mutex
	now *generation // guarded by mu
}

func newGenerations() *generations { return &generations{now: newGeneration()} }

// hold returns the open generation with a reference for a put.
func (x *generations) hold() *generation {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.now.refs.Add(1)
	return x.now
}

// barrier calls then once all earlier puts are stored, or never if one of them fails.
func (x *generations) barrier(then func()) {
	next := newGeneration()
	next.refs.Add(1)
	x.mu.Lock()
	g := x.now
	x.now = next
	x.mu.Unlock()
	g.then = func() {
		then()
		next.release()
	}
	g.release()
}
