package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/integration/leaktest"
)

// TestMain fails if the tests leak goroutines.
func TestMain(m *testing.M) { leaktest.Main(m) }

// TestTimes: a flag accepts the values that the reference lists for TIME, including seconds.
func TestTimes(t *testing.T) {
	for value, want := range map[string]time.Duration{"2": 2 * time.Second, "1m30s": 90 * time.Second, "150ms": 150 * time.Millisecond, "0": 0} {
		c := waitCmd()
		if err := c.ParseFlags([]string{"--timeout", value}); err != nil {
			t.Errorf("--timeout %s: %v", value, err)
		}
		if got := (*time.Duration)(c.Flag("timeout").Value.(*timeValue)); *got != want {
			t.Errorf("--timeout %s is %v, want %v", value, *got, want)
		}
	}
	c := root()
	c.SetArgs([]string{"top", "--every", "soon"})
	c.SetOut(io.Discard)
	if err := c.Execute(); err == nil || !strings.Contains(err.Error(), `"soon" is not a time: write seconds, or 1m30s`) {
		t.Errorf("--every soon: %v", err)
	}
}
