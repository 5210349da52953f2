package stagein

import (
	"maps"
	"slices"
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// marker makes the marks of a share of several archives, some of which are read at a time, so that their
// records and inodes are mixed. A mark says where each of them is, between two of its members: what was recorded is before these places, and
// nothing else is. Of a member that one of them is in then, the inode is kept for it.
//
// Records are written and inodes numbered while mu is held, so that these places and what was recorded agree.
type marker struct {
	s    *Share
	gens *generations // of what all archives put

	mu     sync.Mutex
	next   int           // guarded by mu; the first archive that was not begun
	open   map[int]*Spot // guarded by mu; of those before it that are not whole
	need   int64         // guarded by mu; bytes of recorded members of compressed tars
	passed int64         // guarded by mu; bytes of all archives since the last mark
}

func newMarker(s *Share) *marker {
	m := &marker{s: s, gens: newGenerations(), open: make(map[int]*Spot)}
	if k := s.cfg.Resume; k != nil {
		m.next, m.need = k.Next, k.Need
		for _, b := range k.Open {
			at := b.Spot
			m.open[b.Archive] = &at
		}
	}
	return m
}

// begin takes note of the next archive, which is begun.
func (m *marker) begin(i int) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next, m.open[i] = i+1, new(Spot)
}

// done takes note of an archive all of which is stored and recorded.
func (m *marker) done(i int) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, i)
	return m.pass(0)
}

// ino is the inode of a member that an archive begins with.
func (m *marker) ino(i int) (ino metadata.Ino, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.open[i]
	if at.Ino == 0 {
		at.Ino, err = m.s.rec.ino()
	}
	return at.Ino, err
}

// at takes note that an archive has come to a spot n bytes behind the one before, with nothing
// recorded between them.
func (m *marker) at(i int, to Spot, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	to.Ino = m.open[i].Ino
	*m.open[i] = to
	return m.pass(n)
}

// record has a member of an archive recorded, which ends at a spot n bytes behind the one before.
func (m *marker) record(i int, to Spot, n, need int64, add func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := add(); err != nil {
		return err
	}
	*m.open[i] = to
	m.need += need
	return m.pass(n)
}

// pass makes a mark if it is time; mu is held.
func (m *marker) pass(n int64) error {
	if m.passed += n; m.passed < m.s.lim.mark {
		return nil
	}
	m.passed = 0
	k := Mark{Next: m.next, Need: m.need, Files: m.s.count.files.Load()}
	for _, i := range slices.Sorted(maps.Keys(m.open)) {
		k.Open = append(k.Open, Begun{i, *m.open[i]})
	}
	if err := m.s.recorded(&k); err != nil {
		return err
	}
	m.gens.mark(func() { m.s.cfg.Marked(k) })
	return nil
}

// pass tells of what was gone over since something was recorded.
func (c *chain) pass() error {
	n := c.t.pos - c.marked
	if n == 0 {
		return nil
	}
	c.marked = c.t.pos
	return c.r.marker.at(c.r.nth, c.spot(), n)
}

// passWith records a member, behind which the chain is.
func (c *chain) passWith(rec manifest.Record) error {
	n, need := c.t.pos-c.marked, int64(0)
	if c.marked = c.t.pos; c.r.packed != nil {
		need = c.g.Item.Stored()
	}
	return c.r.marker.record(c.r.nth, c.spot(), n, need, func() error { return c.r.record(rec) })
}
