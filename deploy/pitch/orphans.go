package pitch

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The keeper is the subreaper of its daemon: orphaned processes that the daemon started become its children, whatever
// their session. Otherwise a user could make the daemon, which runs as the user, start processes that outlive the job
// and that Slurm does not know. Only their parent identifies them, since the user can give them other user IDs
// (newuidmap), another environment and other namespaces. A process that the user has a service start, such as a user's
// systemd, belongs to that service.

// adoptOrphans makes this process a subreaper.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set subreaper: %w", err)
	}
	return nil
}

// killOrphans kills the children of this process that do not run as root, and in turn their children. Processes of root
// are our own.
func killOrphans(ctx context.Context) error {
	var left []int
	err := poll(ctx, func() bool {
		left = childrenOf(os.Getpid())
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)               // only we reap it, so its pid is not reused
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // or in the next round
		}
		return len(left) == 0
	})
	if err != nil {
		return fmt.Errorf("processes %v, started by the daemon, do not die: %w", left, err)
	}
	return nil
}

// childrenOf returns the children of a process that do not run as root, including zombies.
func childrenOf(parent int) (pids []int) {
	names, err := readNames("/proc")
	if err != nil {
		return nil
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + name + "/status")
		if err == nil && statusField(string(b), "PPid") == strconv.Itoa(parent) && statusField(string(b), "Uid") != "0" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// statusField returns the first value of a line of /proc/PID/status; for Uid that is the real one.
func statusField(status, key string) string {
	for line := range strings.Lines(status) {
		if k, v, ok := strings.Cut(line, ":"); ok && k == key {
			v, _, _ = strings.Cut(strings.TrimSpace(v), "\t")
			return v
		}
	}
	return ""
}

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
