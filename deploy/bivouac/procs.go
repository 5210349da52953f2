package main

import (
	"os"
	"runtime"
)

// leastProcs is the minimum of GOMAXPROCS: how many goroutines of a daemon can run Go code, or be in a system call that
// has just begun. A goroutine in a system call that waits for the source or the disk keeps its P until the runtime
// retakes it, which takes milliseconds on a busy machine; if all Ps are blocked so, requests of the kernel and of other
// nodes wait. An unused P costs nothing.
const leastProcs = 16

// raiseProcs sets GOMAXPROCS to at least leastProcs, unless the user has set it.
func raiseProcs() {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < leastProcs {
		runtime.GOMAXPROCS(leastProcs)
	}
}
