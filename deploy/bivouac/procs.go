package main

import (
	"os"
	"runtime"
)

// leastProcs is how many goroutines of a daemon can be in Go code, or in a system
// call that has just begun, at a time. One that waits for the source or for the
// disk keeps its place until the runtime looks, which takes milliseconds where
// others want the processors, too; if all places are kept so, the requests of the
// kernel and of other nodes wait meanwhile. Places that are not used cost nothing.
const leastProcs = 16

// raiseProcs gives the daemon at least leastProcs, unless the user has said how
// many in GOMAXPROCS.
func raiseProcs() {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < leastProcs {
		runtime.GOMAXPROCS(leastProcs)
	}
}
