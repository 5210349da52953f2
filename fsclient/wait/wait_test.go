package wait

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestErrno(t *testing.T) {
	late, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	if got := Errno(late); got != syscall.ETIMEDOUT {
		t.Errorf("Errno after the deadline = %v, want ETIMEDOUT", got)
	}
	if got := Errno(canceled()); got != syscall.EINTR {
		t.Errorf("Errno after a cancel = %v, want EINTR", got)
	}
}

func TestMutex(t *testing.T) {
	m := NewMutex()
	if err := m.Lock(canceled()); err != nil {
		t.Errorf("a free mutex = %v, want nil", err)
	}
	if err := m.Lock(canceled()); !errors.Is(err, syscall.EINTR) {
		t.Errorf("a locked mutex = %v, want EINTR", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- m.Lock(context.Background()) }()
	m.Unlock()
	if err := <-locked; err != nil {
		t.Errorf("after Unlock = %v", err)
	}
}

func TestFor(t *testing.T) {
	done := make(chan struct{})
	if err := For(canceled(), done); !errors.Is(err, syscall.EINTR) {
		t.Errorf("an open channel = %v, want EINTR", err)
	}
	close(done)
	if err := For(canceled(), done); err != nil {
		t.Errorf("a closed channel = %v, want nil", err)
	}
}

// TestBatches: concurrent signals form one batch, and flush is called until nothing is pending.
func TestBatches(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := NewSignal()
	var left atomic.Int64
	left.Store(3)
	empty, ended := make(chan struct{}), make(chan struct{})
	s.Set()
	s.Set()
	go func() {
		defer close(ended)
		Batches(ctx, s, time.Microsecond, func() bool { return left.Load() > 0 }, func() time.Duration {
			if left.Add(-1) == 0 {
				close(empty)
			}
			return time.Microsecond
		})
	}()
	<-empty
	cancel()
	<-ended
}

// TestEach: all items are visited, and one error is returned.
func TestEach(t *testing.T) {
	ctx := context.Background()
	for n := range 40 {
		items := make([]int, n)
		var calls atomic.Int64
		err := Each(ctx, items, func(context.Context, int) error {
			if calls.Add(1) == int64(n) {
				return syscall.EIO
			}
			return nil
		})
		if calls.Load() != int64(n) || n > 0 != errors.Is(err, syscall.EIO) {
			t.Errorf("Each of %d = %v after %d calls", n, err, calls.Load())
		}
	}
}
