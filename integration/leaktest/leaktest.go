// Package leaktest is the TestMain of packages that start goroutines: after their tests have passed, no goroutine may
// be left. Its one idea is that every function that ends a test (Close, Stop, Down) waits for the goroutines it
// started; a goroutine that ends later by itself has no owner. It has no list of exceptions.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds how long goroutines may take to end after the last test; it is no measure of speed.
const patience = 30 * time.Second

// Main runs the tests, checks that they have leaked no goroutine, and exits.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := Left(patience); err != nil {
			fmt.Fprintln(os.Stderr, "leaked goroutines:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Left returns an error that shows the goroutines, except the caller's, that do not end within the given time.
func Left(within time.Duration) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); ; <-tick.C {
		err := goleak.Find()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
