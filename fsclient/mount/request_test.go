package mount

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestRequest(t *testing.T) {
	cancel := make(chan struct{})
	r := newRequest(cancel)
	ctx, stop := context.WithCancel(r)
	defer stop()
	if err := ctx.Err(); err != nil {
		t.Fatalf("Err = %v before anything", err)
	}
	start := time.Now()
	close(cancel)
	<-ctx.Done()
	if d := time.Since(start); d < grace {
		t.Errorf("interrupted after %v, want a grace of %v", d, grace)
	}
	if !errors.Is(r.Err(), context.Canceled) {
		t.Errorf("Err = %v, want %v", r.Err(), context.Canceled)
	}
	r.end()
}

// TestRequestThatEnds: a request that ends within the grace is not interrupted.
func TestRequestThatEnds(t *testing.T) {
	cancel := make(chan struct{})
	r := newRequest(cancel)
	done := r.Done()
	close(cancel)
	r.end()
	r.end()
	select {
	case <-done:
		t.Error("done after its end")
	case <-time.After(2 * grace):
	}
	if r.Err() != nil {
		t.Errorf("Err = %v", r.Err())
	}
	late := newRequest(cancel)
	late.end()
	if late.Done() == nil || late.Err() != nil {
		t.Error("Done after end")
	}
}
