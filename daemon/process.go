package daemon

import (
	"fmt"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how late the kernel may wake a thread of a daemon that sleeps for
// a time. Go's runtime sleeps for some microseconds again and again: a thread
// that looks for work waits so before it takes a goroutine that its own thread is
// about to run, and another one looks after all of them. Of a daemon whose
// goroutines wait for each other, for the kernel and for the network, that is a
// fifth of the processor time, without any use. What waits in earnest here, waits
// for longer.
const timerSlack = time.Millisecond

// StartProcess starts the process of a daemon, cmd. It inherits the slack of its
// timers from the thread that starts it, as its first threads begin before
// anything of ours runs there.
func StartProcess(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0); err != nil {
		return fmt.Errorf("slack of timers: %w", err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }() // 0 is as before, and cannot fail
	return cmd.Start()
}
