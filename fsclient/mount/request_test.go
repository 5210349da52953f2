package mount

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

func TestRequest(t *testing.T) {
	cancel := make(chan struct{})
	r := newRequest(cancel, 0)
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

// TestRequestThatEnds: a request that ends within the grace period is not interrupted.
func TestRequestThatEnds(t *testing.T) {
	cancel := make(chan struct{})
	r := newRequest(cancel, 0)
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
	late := newRequest(cancel, 0)
	late.end()
	if late.Done() == nil || late.Err() != nil {
		t.Error("Done after end")
	}
}

// TestHandledSignal: a signal that does not kill the process does not interrupt its request, however long that takes;
// it does interrupt a wait for a lock. Every request of a thread that no longer exists is interrupted.
func TestHandledSignal(t *testing.T) {
	cancel := make(chan struct{})
	close(cancel)
	self := uint32(os.Getpid()) // no signal is pending
	r, lock, gone := newRequest(cancel, self), newRequest(cancel, self), newRequest(cancel, 1<<30)
	lock.waits = true
	done := r.Done()
	<-lock.Done()
	<-gone.Done()
	select {
	case <-done:
		t.Error("a request was interrupted that no fatal signal waits for")
	case <-time.After(4 * grace):
	}
	for _, r := range []*request{r, lock, gone} {
		r.end()
	}
}

func TestFatalIn(t *testing.T) {
	const kill, term, usr1, winch = "0000000000000100", "0000000000004000", "0000000000000200", "0000000008000000"
	status := func(thread, process, blocked, ignored, caught string) string {
		return "Name:\tcat\nSigQ:\t1/95\nSigPnd:\t" + thread + "\nShdPnd:\t" + process +
			"\nSigBlk:\t" + blocked + "\nSigIgn:\t" + ignored + "\nSigCgt:\t" + caught + "\nCapInh:\t0\n"
	}
	for _, c := range []struct {
		name, status string
		want         bool
	}{
		{"nothing", status("0", "0", "0", "0", "0"), false},
		{"killed", status(kill, "0", "0", "0", term), true},
		{"terminated", status("0", term, "0", "0", "0"), true},
		{"handled", status("0", term, "0", "0", term), false},
		{"ignored", status("0", usr1, "0", usr1, "0"), false},
		{"blocked", status(usr1, "0", usr1, "0", "0"), false},
		{"harmless", status("0", winch, "0", "0", "0"), false},
		{"no status", "", false},
	} {
		if got := fatalIn(c.status); got != c.want {
			t.Errorf("%s: fatal is %v", c.name, got)
		}
	}
}
