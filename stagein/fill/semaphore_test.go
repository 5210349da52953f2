package fill

import (
	"testing"
	"time"
)

// TestSemaphore: the next to be admitted is the waiter that is first in the plan's order; demand reads need no slot.
func TestSemaphore(t *testing.T) {
	s := semaphore{free: 1}
	if !s.acquire(0, nil) {
		t.Fatal("no seat is free")
	}
	in := make(chan int64)
	wanted, went := make(chan struct{}), make(chan bool)
	waiting := func(n int) {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			s.mu.Lock()
			got := len(s.queue)
			s.mu.Unlock()
			if got == n {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d wait, want %d", got, n)
			}
		}
	}
	turns := []int64{5, 2, 9, 3}
	for i, turn := range turns {
		go func() {
			s.acquire(turn, nil)
			in <- turn
		}()
		waiting(i + 1)
	}
	go func() { went <- s.acquire(1, wanted) }()
	waiting(len(turns) + 1)
	close(wanted)
	if <-went {
		t.Error("who is wanted has a seat that nobody left")
	}
	for _, want := range []int64{2, 3, 5, 9} {
		s.release()
		if got := <-in; got != want {
			t.Errorf("turn %d is let in, want %d", got, want)
		}
	}
	s.release()
	if s.free != 1 || len(s.queue) != 0 {
		t.Errorf("%d seats are free, %d wait", s.free, len(s.queue))
	}
}
