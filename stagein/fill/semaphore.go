package fill

import (
	"slices"
	"sync"
)

// semaphore bounds concurrent read-ahead. It admits the waiter that is first in the order of the fill, because readers
// want files in that order, not in the order in which they were opened.
type semaphore struct {
	mu    sync.Mutex
	free  int       // guarded by mu
	queue []*ticket // guarded by mu; by turn
}

// ticket is a waiter of the semaphore.
type ticket struct {
	order    int64
	admitted chan struct{} // closed on admission
}

// acquire waits for a slot, and reports false if wanted is closed first.
func (s *semaphore) acquire(turn int64, wanted <-chan struct{}) bool {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return true
	}
	x := &ticket{order: turn, admitted: make(chan struct{})}
	at, _ := slices.BinarySearchFunc(s.queue, turn, func(y *ticket, turn int64) int { return int(y.order - turn) })
	s.queue = slices.Insert(s.queue, at, x)
	s.mu.Unlock()
	select {
	case <-x.admitted:
		return true
	case <-wanted:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.queue, x)
	if i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
	return i < 0 // it was admitted meanwhile
}

// release gives a slot back.
func (s *semaphore) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.free++
		return
	}
	close(s.queue[0].admitted)
	s.queue = s.queue[1:]
}
