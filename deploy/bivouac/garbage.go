package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// leastHeap is how large, in bytes, the heap becomes before it is collected, however
// little of it is in use. A daemon uses little but has many buffers on their way: by
// Go's own measure a stage-in collects all the time, and each time stops all.
const leastHeap = 64 << 20

// spareCollector sees to leastHeap, and reports whether it does: not if the user has
// said something in GOGC.
func spareCollector() bool {
	if os.Getenv("GOGC") != "" {
		return false
	}
	new(collection).ended()
	return true
}

// collection is garbage: the next collection finds it, and it makes another.
type collection struct{ _ [16]byte } // too large to be kept with others

// ended sets when the next collection begins, from what this one has left.
func (c *collection) ended() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	debug.SetGCPercent(percentFor(int64(live[0].Value.Uint64())))
	runtime.SetFinalizer(c, (*collection).ended)
}

// goPercent is what Go begins with: the heap becomes twice what is in use.
const goPercent = 100

// percentFor is by how much of what is in use, in percent, the heap may grow.
func percentFor(live int64) int {
	live = max(live, leastHeap/16) // Go has a least heap of its own, of 4 MiB for each 100
	return int(max(100*(leastHeap-live)/live, goPercent))
}
