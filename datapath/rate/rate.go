// Package rate limits bytes per second (a token bucket). A caller that takes n bytes waits until the rate has allowed
// these and all bytes taken before: over any period no more passes than the rate and a burst of a tenth of a second
// allow, and no less while a caller waits.
//
// It must not know what the bytes are or to whom they belong.
package rate

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"syscall"
	"time"
)

// burst is how much unused rate may be saved for later.
const burst = 100 * time.Millisecond

// Bucket is a limit; a nil Bucket does not limit. It is safe for concurrent use and serves callers in order.
type Bucket struct {
	perSecond int64
	now       func() time.Time

	mu     sync.Mutex
	paid   time.Time     // guarded by mu; when the rate will have allowed all bytes taken
	passed int64         // guarded by mu; bytes
	held   time.Duration // guarded by mu; total wait of all takers
}

// New returns a bucket of perSecond bytes per second; nil if that is 0. now is the clock; nil: the machine's.
func New(perSecond int64, now func() time.Time) *Bucket {
	if perSecond <= 0 {
		return nil
	}
	if now == nil {
		now = time.Now
	}
	return &Bucket{perSecond: perSecond, now: now, paid: now()}
}

// Take returns nil when n bytes may pass, or EAGAIN when ctx ends first; then they must not pass.
func (b *Bucket) Take(ctx context.Context, n int64) error {
	if b == nil || n <= 0 {
		return nil
	}
	wait := b.reserve(n)
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		b.giveBack(n)
		return fmt.Errorf("%d bytes at %d a second: %w: %w", n, b.perSecond, syscall.EAGAIN, context.Cause(ctx))
	}
}

// reserve takes n bytes, and returns how long the caller must wait.
func (b *Bucket) reserve(n int64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if idle := now.Add(-burst); b.paid.Before(idle) {
		b.paid = idle
	}
	b.paid = b.paid.Add(b.cost(n))
	b.passed += n
	wait := max(b.paid.Sub(now), 0)
	b.held += wait
	return wait
}

// giveBack returns bytes that were taken but will not pass.
func (b *Bucket) giveBack(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paid = b.paid.Add(-b.cost(n))
	b.passed -= n
}

// cost returns the time that n bytes take, rounded up.
func (b *Bucket) cost(n int64) time.Duration {
	hi, lo := bits.Mul64(uint64(n), uint64(time.Second))
	if hi >= uint64(b.perSecond) {
		return 1 << 62 // centuries
	}
	d, rest := bits.Div64(hi, lo, uint64(b.perSecond))
	if d >= 1<<62 {
		return 1 << 62
	}
	if rest > 0 {
		d++
	}
	return time.Duration(d)
}

// Stats holds the counters of a bucket.
type Stats struct {
	Limit  int64   `json:"limit"`  // bytes per second
	Bytes  int64   `json:"bytes"`  // passed, or taken and waiting
	Waited float64 `json:"waited"` // seconds, of all callers
}

// Stats returns the counters; nil if there is no limit.
func (b *Bucket) Stats() *Stats {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return &Stats{Limit: b.perSecond, Bytes: b.passed, Waited: b.held.Seconds()}
}
