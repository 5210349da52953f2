package daemon

import (
	"fmt"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how late the kernel may wake a sleeping thread of a daemon. Go's scheduler sleeps for a few
// microseconds again and again, in threads that look for work and in its monitor. The goroutines of a daemon mostly
// wait for each other, the kernel and the network, so this would waste a fifth of the processor time. Real waits are
// longer.
const timerSlack = time.Millisecond

// StartProcess starts a daemon's process with timerSlack. A process inherits the slack from
// the thread that starts it; its own code would run too late to set it for its first threads.
func StartProcess(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0); err != nil {
		return fmt.Errorf("slack of timers: %w", err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }() // 0 resets it; cannot fail
	return cmd.Start()
}
