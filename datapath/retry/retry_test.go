package retry

import (
	"context"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	b := New(time.Second, 5*time.Second, 0)
	for round := range 2 {
		for i, want := range []time.Duration{1, 2, 4, 5, 5} {
			if got := b.Next(); got != want*time.Second {
				t.Errorf("round %d: pause %d is %v, want %ds", round, i, got, want)
			}
		}
		b.Reset()
	}
	b = New(time.Minute, time.Second, 0.25)
	for range 100 {
		if got := b.Next(); got < 750*time.Millisecond || got > 1250*time.Millisecond {
			t.Fatalf("a pause of at most 1 s with a jitter of a quarter is %v", got)
		}
	}
}

func TestPause(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	b := New(time.Microsecond, time.Microsecond, 1)
	if !b.Wait(ctx) {
		t.Error("a pause of a microsecond does not end")
	}
	cancel()
	if Pause(ctx, time.Hour) {
		t.Error("a pause goes on when its context has ended")
	}
}
