package main

import (
	"runtime"
	"testing"
)

// TestRaiseProcs: a daemon on few processors gets leastProcs Ps, unless the user has set GOMAXPROCS.
func TestRaiseProcs(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	for _, c := range []struct {
		env       string
		had, want int
	}{{"2", 2, 2}, {"", 2, leastProcs}, {"", leastProcs + 1, leastProcs + 1}} {
		t.Setenv("GOMAXPROCS", c.env)
		runtime.GOMAXPROCS(c.had)
		raiseProcs()
		if got := runtime.GOMAXPROCS(0); got != c.want {
			t.Errorf("GOMAXPROCS=%q: %d places of %d, want %d", c.env, got, c.had, c.want)
		}
	}
}
