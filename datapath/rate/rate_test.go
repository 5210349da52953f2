package rate

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestExact: in every second with waiters exactly the rate passes, except for the burst at the beginning and requests
// in flight at the end.
func TestExact(t *testing.T) {
	const takers, seconds, most = 7, 10, 1 << 20
	for _, rate := range []int64{1 << 20, 12_345_678, 1_000_000_000} {
		synctest.Test(t, func(t *testing.T) {
			b := New(rate, nil)
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), seconds*time.Second+time.Millisecond)
			defer cancel()
			var passed [seconds + 1]atomic.Int64
			var wg sync.WaitGroup
			for i := range int64(takers) {
				wg.Go(func() {
					for n := most - i*100_003; b.Take(ctx, n) == nil; {
						passed[int(time.Since(began)/time.Second)].Add(n)
					}
				})
			}
			wg.Wait()
			sum := int64(0)
			for s := range seconds {
				got := passed[s].Load()
				sum += got
				if got < rate-most || got > rate+most {
					t.Errorf("%d bytes passed in second %d, want %d", got, s, rate)
				}
			}
			if sum > rate*seconds || sum < rate*seconds-most {
				t.Errorf("%d bytes passed in %d seconds, want %d", sum, seconds, rate*seconds)
			}
		})
	}
}

// TestBurst: after an idle time at most a tenth of a second's bytes pass immediately.
func TestBurst(t *testing.T) {
	now := time.Unix(1000, 0)
	b := New(1000, func() time.Time { return now })
	now = now.Add(time.Hour)
	for i, c := range []struct {
		n    int64
		want time.Duration
	}{{100, 0}, {1, time.Millisecond}, {999, time.Second}, {1000, 2 * time.Second}} {
		if got := b.reserve(c.n); got != c.want {
			t.Errorf("take %d of %d bytes waits %v, want %v", i, c.n, got, c.want)
		}
	}
	if s := b.Stats(); s.Bytes != 2100 || s.Limit != 1000 || s.Waited != 3.001 {
		t.Errorf("Stats = %+v", s)
	}
}

// TestCancel: a cancelled wait takes no bytes, and the next caller does not pay for it.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(1000, nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		if err := b.Take(ctx, 1_000_000); !errors.Is(err, syscall.EAGAIN) || time.Since(began) != time.Second {
			t.Errorf("Take = %v after %v, want EAGAIN after 1s", err, time.Since(began))
		}
		if err := b.Take(context.Background(), 1000); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("Take after that = %v after %v", err, time.Since(began))
		}
		if s := b.Stats(); s.Bytes != 1000 {
			t.Errorf("Stats = %+v, want 1000 bytes", s)
		}
	})
}

// TestNone: without a limit there is no wait, and the largest numbers do not overflow.
func TestNone(t *testing.T) {
	none := New(0, nil)
	if err := none.Take(context.Background(), math.MaxInt64); none != nil || err != nil || none.Stats() != nil {
		t.Errorf("Take of no bucket = %v", err)
	}
	for _, rate := range []int64{1, 1 << 20, math.MaxInt64} {
		if d := New(rate, nil).cost(math.MaxInt64); d <= 0 {
			t.Errorf("all bytes at %d a second cost %v", rate, d)
		}
	}
}
