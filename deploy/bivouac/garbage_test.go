package main

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercentFor(t *testing.T) {
	for _, c := range []struct {
		live int64
		want int
	}{
		{0, 1500}, {leastHeap / 16, 1500}, {leastHeap / 8, 700}, {leastHeap / 2, goPercent}, {leastHeap, goPercent}, {10 * leastHeap, goPercent},
	} {
		if got := percentFor(c.live); got != c.want {
			t.Errorf("with %d bytes in use: %d %%, want %d", c.live, got, c.want)
		}
	}
}

// TestSpareCollector: each collection determines when the next one begins, unless the user has set the percentage.
func TestSpareCollector(t *testing.T) {
	before := debug.SetGCPercent(goPercent)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	t.Setenv("GOGC", "50")
	if spareCollector() {
		t.Error("the user's word does not count")
	}
	t.Setenv("GOGC", "")
	if !spareCollector() {
		t.Error("nothing is set, though the user has said nothing")
	}
	awaitPercent(t, "little in use", func(n int) bool { return n > goPercent })
	much := make([]byte, 2*leastHeap)
	awaitPercent(t, "much in use", func(n int) bool { return n == goPercent })
	runtime.KeepAlive(much)
	awaitPercent(t, "little in use again", func(n int) bool { return n > goPercent })
}

// percent returns the current percentage of the collector.
func percent() int {
	n := debug.SetGCPercent(goPercent)
	debug.SetGCPercent(n)
	return n
}

func awaitPercent(t *testing.T, when string, want func(int) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !want(percent()); runtime.GC() {
		if time.Now().After(end) {
			t.Fatalf("%s: %d %%", when, percent())
		}
	}
}
