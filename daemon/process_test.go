package daemon

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// slackOf returns the timer slack, in nanoseconds, of a process that start starts.
func slackOf(t *testing.T, start func(*exec.Cmd) error) int64 {
	t.Helper()
	var out strings.Builder
	cmd := exec.Command("cat", "/proc/self/timerslack_ns")
	cmd.Stdout = &out
	if err := start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Skipf("this kernel does not tell: %v", err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(out.String()), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTimerSlack: the kernel may delay the wake-ups of a daemon's threads, and the process that starts the daemon keeps
// its own timer slack.
func TestTimerSlack(t *testing.T) {
	before := slackOf(t, (*exec.Cmd).Start)
	if before == int64(timerSlack) {
		t.Skip("all processes here have that slack")
	}
	if got := slackOf(t, StartProcess); got != int64(timerSlack) {
		t.Errorf("slack of a daemon: %d ns, want %v", got, timerSlack)
	}
	if got := slackOf(t, (*exec.Cmd).Start); got != before {
		t.Errorf("slack of another process afterwards: %d ns, want %d", got, before)
	}
}
