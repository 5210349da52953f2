package sources

import (
	"math"
	"time"
)

const (
	memory    = time.Second // time constant of the averages
	mostNew   = 0.5         // weight limit of one sample after the first ones
	outlier   = 2           // a first sample above this many averages counts as this many
	surprise  = 16          // likewise for a second one in a row
	smallRead = 16 << 10    // bytes; up to this size the time of a read counts as the place's latency
)

// average is a moving average that one outlier does not move far.
type average struct {
	value float64
	n     int // samples, up to a few
	high  bool
	at    time.Time // of the last sample
}

func (a *average) add(x float64, now time.Time) {
	if a.n == 0 {
		*a = average{value: x, n: 1, at: now}
		return
	}
	limit := outlier * a.value
	if a.high {
		limit = surprise * a.value
	}
	a.high = x > outlier*a.value
	w := 1 - math.Exp(-now.Sub(a.at).Seconds()/memory.Seconds())
	if a.n < 8 {
		a.n++
		w = max(w, 1/float64(a.n))
	}
	a.value += min(w, mostNew) * (min(x, limit) - a.value)
	a.at = now
}

// speed estimates the time that reads from a place take.
type speed struct {
	latency average // seconds
	perByte average // seconds, beyond the latency
}

func (s *speed) add(n int64, took float64, now time.Time) {
	if n <= smallRead {
		s.latency.add(took, now)
		return
	}
	s.perByte.add(max(took-s.latency.value, took/4)/float64(n), now)
}

// expect returns the expected time of a read of n bytes; known is false without samples.
func (s *speed) expect(n int64) (seconds float64, known bool) {
	return s.latency.value + float64(n)*s.perByte.value, s.latency.n+s.perByte.n > 0
}

// last returns the time of the last sample.
func (s *speed) last() time.Time {
	if s.latency.at.After(s.perByte.at) {
		return s.latency.at
	}
	return s.perByte.at
}
