package pitch

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// What a daemon starts becomes the keeper's when it loses its parent, whatever session or
// group it has made for itself: a user can have his daemon, which is a process of his,
// start what would outlive the job, with its mounts, outside of all that Slurm knows of.

// adoptOrphans makes this process the parent of what loses its own below it.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("orphans: %w", err)
	}
	return nil
}

// killOrphans ends the processes of uid that are this one's, and what they leave behind.
// Those of root are our own.
func killOrphans(ctx context.Context, uid uint32) error {
	if uid == 0 {
		return nil
	}
	var left []int
	err := poll(ctx, func() bool {
		left = childrenOf(os.Getpid(), uid)
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)               // nobody else waits for it, so it is still who it was
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // or in the next round
		}
		return len(left) == 0
	})
	if err != nil {
		return fmt.Errorf("processes %v, which the daemon has started, do not end: %w", left, err)
	}
	return nil
}

// childrenOf is the children of a process that are uid's, also those that have ended.
func childrenOf(parent int, uid uint32) (pids []int) {
	names, err := readNames("/proc")
	if err != nil {
		return nil // then there is nothing to be found
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + name + "/status")
		if err == nil && statusField(string(b), "PPid") == strconv.Itoa(parent) && statusField(string(b), "Uid") == strconv.FormatUint(uint64(uid), 10) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// statusField is the first value of a line of /proc/PID/status; of Uid it is the real one.
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
