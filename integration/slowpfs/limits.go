package slowpfs

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"
)

// Limits is the speed of a server. The zero value is the full speed of FUSE and the directory below.
type Limits struct {
	Latency   time.Duration `json:"latency,omitempty"`   // of every request
	Bandwidth int64         `json:"bandwidth,omitempty"` // bytes per second, of all mounts together; 0 is no limit
	IOPS      int64         `json:"iops,omitempty"`      // requests per second, of all mounts together; 0 is no limit
	Errors    int           `json:"errors,omitempty"`    // one random request in this many fails with EIO; 0 is none
}

func (l Limits) validate() error {
	if l.Latency < 0 || l.Bandwidth < 0 || l.IOPS < 0 || l.Errors < 0 {
		b, _ := json.Marshal(l) // of numbers
		return fmt.Errorf("limits %s: one is negative: %w", b, syscall.EINVAL)
	}
	return nil
}

// burst is the unused time that a bucket saves at most.
const burst = 20 * time.Millisecond

// bucket hands out a rate. It records when everything taken is paid for.
type bucket struct {
	paid time.Time
}

// take takes n at rate per second, and returns when they are paid for.
func (b *bucket) take(now time.Time, n, rate int64) time.Time {
	if rate <= 0 || n <= 0 {
		return now
	}
	if least := now.Add(-burst); b.paid.Before(least) {
		b.paid = least
	}
	b.paid = b.paid.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	return b.paid
}

// server applies the limits.
type server struct {
	clock clock

	mu     sync.Mutex
	limits Limits // guarded by mu
	ops    bucket // guarded by mu
	bytes  bucket // guarded by mu
}

func (s *server) set(l Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits = l
}

// fails reports whether a request must fail.
func (s *server) fails() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits.Errors > 0 && rand.IntN(s.limits.Errors) == 0
}

// serve waits for the end of a request that arrived at the time came and moved n bytes, or until cancel is closed.
func (s *server) serve(cancel <-chan struct{}, came time.Time, n int64) {
	s.mu.Lock()
	l := s.limits
	now := s.clock.now()
	over := came.Add(l.Latency)
	if t := s.ops.take(now, 1, l.IOPS); t.After(over) {
		over = t
	}
	if t := s.bytes.take(now, n, l.Bandwidth); t.After(over) {
		over = t
	}
	s.mu.Unlock()
	if over.After(now) {
		s.clock.wait(cancel, over)
	}
}

// clock is the time source for requests.
type clock interface {
	now() time.Time
	// wait returns at the time t, or when cancel is closed.
	wait(cancel <-chan struct{}, t time.Time)
}

type wallClock struct{}

func (wallClock) now() time.Time { return time.Now() }

func (wallClock) wait(cancel <-chan struct{}, t time.Time) {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-cancel:
	}
}
