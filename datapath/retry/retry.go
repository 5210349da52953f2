// Package retry paces repeated attempts: exponential back-off with a limit and jitter (github.com/cenkalti/backoff),
// and a pause that ends with a context. The caller decides whether to repeat an attempt.
package retry

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Backoff is a series of pauses, each twice as long as the one before.
type Backoff struct{ b backoff.ExponentialBackOff }

// New starts a series of pauses that begins with first and grows to most. A pause d is random between d-jitter*d and
// d+jitter*d.
func New(first, most time.Duration, jitter float64) Backoff {
	return Backoff{backoff.ExponentialBackOff{
		InitialInterval: min(first, most), MaxInterval: most, Multiplier: 2, RandomizationFactor: jitter,
	}}
}

// Next returns the next pause of the series.
func (b *Backoff) Next() time.Duration { return b.b.NextBackOff() }

// Reset starts the series again, after a success.
func (b *Backoff) Reset() { b.b.Reset() }

// Wait waits for the next pause of the series; it returns false if ctx ended first.
func (b *Backoff) Wait(ctx context.Context) bool { return Pause(ctx, b.Next()) }

// Pause waits for d; it returns false if ctx ended first.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
