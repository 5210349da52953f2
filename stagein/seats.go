package stagein

import (
	"slices"
	"sync"
)

// seats lets so many in at a time who read ahead. Of those who wait the first in the order of the fill is next:
// they come as their files are open, and readers want them in that order.
type seats struct {
	mu   sync.Mutex
	free int     // guarded by mu
	line []*seat // guarded by mu; by turn
}

// seat is one who waits.
type seat struct {
	turn int64
	has  chan struct{} // closed when it is let in
}

// take waits for a seat, and reports whether it has one: not if wanted is closed before.
func (s *seats) take(turn int64, wanted <-chan struct{}) bool {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return true
	}
	x := &seat{turn: turn, has: make(chan struct{})}
	at, _ := slices.BinarySearchFunc(s.line, turn, func(y *seat, turn int64) int { return int(y.turn - turn) })
	s.line = slices.Insert(s.line, at, x)
	s.mu.Unlock()
	select {
	case <-x.has:
		return true
	case <-wanted:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.line, x)
	if i >= 0 {
		s.line = slices.Delete(s.line, i, i+1)
	}
	return i < 0 // it was let in meanwhile
}

// leave gives a seat up.
func (s *seats) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.line) == 0 {
		s.free++
		return
	}
	close(s.line[0].has)
	s.line = s.line[1:]
}
