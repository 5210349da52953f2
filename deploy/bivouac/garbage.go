package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// leastHeap is the heap size, in bytes, below which Go does not collect. A daemon keeps little live data but allocates
// many short-lived buffers: with GOGC=100 a stage-in would collect all the time, and each collection stops all
// goroutines.
const leastHeap = 64 << 20

// spareCollector enforces leastHeap, unless the user has set GOGC, and reports whether it does.
func spareCollector() bool {
	if os.Getenv("GOGC") != "" {
		return false
	}
	new(collection).ended()
	return true
}

// collection is garbage: the next collection runs its finalizer, which makes another one.
type collection struct{ _ [16]byte } // too large for the tiny allocator

// ended sets when the next collection begins, from the live heap after this one.
func (c *collection) ended() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	debug.SetGCPercent(percentFor(int64(live[0].Value.Uint64())))
	runtime.SetFinalizer(c, (*collection).ended)
}

// goPercent is the default of GOGC: the heap grows to twice the live heap.
const goPercent = 100

// percentFor returns the GOGC percentage for a live heap.
func percentFor(live int64) int {
	live = max(live, leastHeap/16) // Go has its own minimum heap: 4 MiB for each 100 percent
	return int(max(100*(leastHeap-live)/live, goPercent))
}
