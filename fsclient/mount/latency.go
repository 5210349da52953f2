package mount

import (
	"math/bits"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// firstBound is the upper bound of the first bucket, in nanoseconds; each later bound is twice the previous one.
	firstBound = 8192
	bounds     = 20 // the last is 4.3 s; longer times are in one more bucket
)

// latency counts how long the requests of one kind took.
type latency struct {
	buckets [bounds + 1]atomic.Int64
	sum     atomic.Int64 // nanoseconds
}

func (l *latency) add(d time.Duration) {
	l.buckets[min(bits.Len64(uint64(max(d-1, 0))/firstBound), bounds)].Add(1)
	l.sum.Add(int64(d))
}

// Latency is the distribution of the times that requests of one kind took, from when the mount has read a request until
// it has the answer.
type Latency struct {
	Count  int64   `json:"count"`
	Mean   float64 `json:"mean_seconds"`
	Median float64 `json:"median_seconds"` // an upper bound, at most twice the value
	P99    float64 `json:"p99_seconds"`    // likewise

	sum     time.Duration
	buckets [bounds + 1]int64
}

func (l *latency) read() Latency {
	r := Latency{sum: time.Duration(l.sum.Load())}
	for i := range l.buckets {
		r.buckets[i] = l.buckets[i].Load()
		r.Count += r.buckets[i]
	}
	if r.Count > 0 {
		r.Mean = r.sum.Seconds() / float64(r.Count)
	}
	r.Median, r.P99 = r.quantile(0.5), r.quantile(0.99)
	return r
}

// quantile returns the bound below which the fraction q of the requests lies, or the last bound for longer ones.
func (l *Latency) quantile(q float64) float64 {
	if l.Count == 0 {
		return 0
	}
	want, n := int64(q*float64(l.Count)), int64(0)
	for i := range bounds {
		if n += l.buckets[i]; n > want {
			return bound(i)
		}
	}
	return bound(bounds - 1)
}

// bound returns the upper bound of the bucket i, in seconds.
func bound(i int) float64 { return float64(int64(firstBound)<<i) / 1e9 }

// Buckets returns how many requests took no longer than first*2^i and longer than the bound before; the last bucket
// counts all longer ones. sum is the total time of all requests.
func (l *Latency) Buckets() (n []int64, first, sum time.Duration) {
	return slices.Clone(l.buckets[:]), firstBound, l.sum
}
