package leaktest

import (
	"strings"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

// TestLeft: a waiting goroutine is found, and one that has ended is not.
func TestLeft(t *testing.T) {
	block := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		waits(block)
	}()
	if err := Left(0); err == nil || !strings.Contains(err.Error(), "leaktest.waits") {
		t.Errorf("a goroutine that waits: %v, want it to be named", err)
	}
	close(block)
	<-ended
	if err := Left(patience); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

//go:noinline
func waits(block chan struct{}) { <-block }
