package wait

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
)

// Errno returns the errno of a context that has ended: EINTR if it was canceled, ETIMEDOUT if its deadline has passed.
func Errno(ctx context.Context) syscall.Errno {
	if errors.Is(ctx.Err(), context.Canceled) {
		return syscall.EINTR
	}
	return syscall.ETIMEDOUT
}

// For waits until done is closed. A closed channel takes precedence over an ended context.
func For(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return Errno(ctx)
	}
}

// Mutex is a mutex whose Lock a context can interrupt. It may be held across a
// remote call.
type Mutex chan struct{}

// NewMutex returns an unlocked Mutex.
func NewMutex() Mutex { return make(Mutex, 1) }

// Lock locks m. A free mutex takes precedence over an ended context.
func (m Mutex) Lock(ctx context.Context) error {
	select {
	case m <- struct{}{}:
		return nil
	default:
	}
	select {
	case m <- struct{}{}:
		return nil
	case <-ctx.Done():
		return Errno(ctx)
	}
}

// Unlock unlocks m.
func (m Mutex) Unlock() { <-m }

// Signal wakes a loop. Signals sent before the loop has received one are merged.
type Signal chan struct{}

// NewSignal returns a Signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set wakes the loop that waits for s.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Batches calls flush after each signal for as long as work is pending. It pauses before each call, so that a batch
// collects: for first after a signal, then for the duration that flush returns. It returns when ctx has ended.
func Batches(ctx context.Context, s Signal, first time.Duration, pending func() bool, flush func() time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s:
		}
		for pause := first; pending(); pause = flush() {
			if !retry.Pause(ctx, pause) {
				return
			}
		}
	}
}
