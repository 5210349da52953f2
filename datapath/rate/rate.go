// Package rate bounds how many bytes pass in a second. Its one idea is that what
// is taken is paid for in time before it passes: who takes n bytes waits until the
// rate has had the time for them and for all that was taken before. So over any
// number of seconds no more passes than the rate allows for them and for a burst of
// a tenth of a second, and no less while somebody waits.
//
// It counts nothing but bytes, and knows neither what they are nor whose.
package rate

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"syscall"
	"time"
)

// burst is how much that was not taken can be taken at once later.
const burst = 100 * time.Millisecond

// Bucket is a bound; nil is none. It may be used by several goroutines, who are
// served in the order in which they come.
type Bucket struct {
	perSecond int64
	now       func() time.Time

	mu     sync.Mutex
	paid   time.Time     // guarded by mu; when all that was taken has been paid for
	passed int64         // guarded by mu; bytes
	held   time.Duration // guarded by mu; that takers were told to wait
}

// New makes a bucket of perSecond bytes; nil if that is 0. now is the clock; nil
// is the machine's.
func New(perSecond int64, now func() time.Time) *Bucket {
	if perSecond <= 0 {
		return nil
	}
	if now == nil {
		now = time.Now
	}
	return &Bucket{perSecond: perSecond, now: now, paid: now()}
}

// Take returns when n bytes may pass, or with EAGAIN when ctx ends before; then
// they are not to pass.
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

// reserve takes n bytes, and says how long they have to wait.
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

// giveBack lets others have what was taken and will not pass.
func (b *Bucket) giveBack(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paid = b.paid.Add(-b.cost(n))
	b.passed -= n
}

// cost is the time that n bytes take, rounded up.
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

// Stats is what a bucket has done.
type Stats struct {
	Limit  int64   `json:"limit"`  // bytes per second
	Bytes  int64   `json:"bytes"`  // that passed or are about to
	Waited float64 `json:"waited"` // seconds, of all who took
}

// Stats returns what the bucket has done; nil if there is no bound.
func (b *Bucket) Stats() *Stats {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return &Stats{Limit: b.perSecond, Bytes: b.passed, Waited: b.held.Seconds()}
}
